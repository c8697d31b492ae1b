"""The picture is well-formed, has a line per run, and its lines stay inside."""

import re
from xml.etree import ElementTree

import numpy as np

from paceline_engine.sim import plot
from paceline_engine.sim.timeline import Point, Timeline
from paceline_engine.testing.sim_loads import scattered, small_simulator

SVG = "{http://www.w3.org/2000/svg}"


def test_each_run_is_a_line_in_each_panel_and_lines_stay_inside():
    sim = small_simulator(scattered(np.random.default_rng(1), 40))
    sim.run()
    root = ElementTree.fromstring(
        plot.svg([("one <run>", sim.timeline.points), ("other", sim.timeline.points[:5])])
    )
    lines = root.findall(f"{SVG}polyline")
    assert len(lines) == 2 * 5
    for line in lines:
        points = re.findall(r"([-\d.]+),([-\d.]+)", line.attrib["points"])
        assert all(0 <= float(x) <= float(root.attrib["width"]) for x, _ in points)
        assert all(0 <= float(y) <= float(root.attrib["height"]) for _, y in points)
    assert "one <run>" in {text.text for text in root.findall(f"{SVG}text")}


def test_nothing_to_show_is_still_a_picture():
    assert ElementTree.fromstring(plot.svg([("empty", [])])).tag == f"{SVG}svg"


def test_a_long_run_keeps_a_bounded_number_of_points_over_its_whole_length():
    timeline = Timeline()
    for step in range(20_000):
        if timeline.is_due:
            timeline.add(Point(float(step), 0, 0, 0.0, 0.0, 0))
    times = [point.at_s for point in timeline.points]
    assert 1000 <= len(times) <= 2048
    assert times == sorted(times)
    assert max(np.diff(times)) == min(np.diff(times))
    assert times[-1] > 19_900

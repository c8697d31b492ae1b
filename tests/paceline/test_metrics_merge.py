"""Several `/metrics` pages as one."""

from prometheus_client.parser import text_string_to_metric_families

from paceline.metrics_merge import merge

PAGE = """\
# HELP vllm:num_requests_running Requests that run.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# HELP t_seconds Time.
# TYPE t_seconds histogram
t_seconds_bucket{le="1",model_name="a\\"},engine=\\"9"} 1
t_seconds_bucket{le="+Inf",model_name="a\\"},engine=\\"9"} 2
t_seconds_sum 0.5
t_seconds_count 2
# HELP c_total Counted.
# TYPE c_total counter
c_total 7 1700000000000
"""


def test_samples_of_one_family_stand_together_under_one_heading() -> None:
    lines = merge({1: PAGE, 0: PAGE}).splitlines()
    assert [line for line in lines if "num_requests_running" in line] == [
        "# HELP vllm:num_requests_running Requests that run.",
        "# TYPE vllm:num_requests_running gauge",
        'vllm:num_requests_running{engine="0",model_name="m"} 3.0',
        'vllm:num_requests_running{engine="1",model_name="m"} 3.0',
    ]
    assert len([line for line in lines if line.startswith("# TYPE")]) == 3


def test_a_sample_without_the_label_gets_it_and_keeps_its_timestamp() -> None:
    lines = merge({4: PAGE}).splitlines()
    assert 't_seconds_sum{engine="4"} 0.5' in lines
    assert 'c_total{engine="4"} 7 1700000000000' in lines


def test_values_that_look_like_labels_are_left_alone() -> None:
    assert '{engine="2",le="1",model_name="a\\"},engine=\\"9"} 1' in merge({2: PAGE})


def test_the_merged_page_is_read_by_the_client_library() -> None:
    families = {f.name: f for f in text_string_to_metric_families(merge({0: PAGE, 1: PAGE}))}
    assert {s.labels["engine"] for s in families["t_seconds"].samples} == {"0", "1"}
    assert len(families["c"].samples) == 2


def test_a_family_that_only_one_replica_has_is_kept() -> None:
    assert merge({0: "", 1: "# TYPE g gauge\ng 1\n"}) == '# TYPE g gauge\ng{engine="1"} 1\n'

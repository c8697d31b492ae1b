# The commands of this repository. Each says what it does while it does it.
export PYTHONSAFEPATH = 1
PYTHON_IN_VENV = .venv/bin/python
ALL_EXTRAS = engine,operator,dev
TESTS ?= tests

.PHONY: help demo test test-full lint format generate .venv

help:
	@echo 'make demo       serve a real model from a manifest, with a sample answer; PORT=8080 moves it'
	@echo 'make test       every test that needs no root and no cluster'
	@echo 'make test-full  the same and the ones that take minutes'
	@echo 'make lint       house rules, format, lint, imports, types, generated files'
	@echo 'make e2e        journeys on a real Kubernetes on this machine; e2e-full: the long ones too'
	@echo 'make kernels-aot  compile the GPU kernels ahead of time; kernels-aot-check: compare'
	@echo 'make format     format the sources'
	@echo 'make generate   write the generated files again'

.venv:
	@tools/make_venv.sh $(ALL_EXTRAS)

demo:
	@tools/make_venv.sh engine
	@.venv/bin/paceline run -f examples/demo.yaml $(if $(PORT),--port $(PORT))

test: .venv
	@echo '--- tests without the ones marked "full"; slow ones are included'
	$(PYTHON_IN_VENV) -m pytest -m 'not full' $(TESTS)

test-full: .venv
	@echo '--- all tests'
	$(PYTHON_IN_VENV) -m pytest $(TESTS)

lint: .venv
	@echo '--- house rules'
	$(PYTHON_IN_VENV) tools/check_house.py
	@echo '--- format and lint'
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	@echo '--- import law'
	PYTHONPATH=crds:kernels:engine:operator .venv/bin/lint-imports
	@echo '--- types'
	.venv/bin/mypy
	@echo '--- generated files'
	$(PYTHON_IN_VENV) -m paceline_crds.generate --check

# Every Triton kernel for every target, without a GPU (kernels/README.md): minutes.
.PHONY: kernels-aot kernels-aot-check
AOT = PYTHONPATH=crds:kernels TRITON_INTERPRET=0 $(PYTHON_IN_VENV) -m paceline_kernels.fused.aot
kernels-aot: .venv
	@echo '--- kernels compiled ahead of time, into kernels/aot_table.md'
	$(AOT) kernels/aot_table.md

kernels-aot-check: .venv
	@echo '--- kernels compiled ahead of time, compared with kernels/aot_table.md'
	$(AOT) --check kernels/aot_table.md

format: .venv
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

generate: .venv
	$(PYTHON_IN_VENV) -m paceline_crds.generate

# Journeys on a real Kubernetes (e2e/README.md). JOURNEYS picks some of them.
JOURNEYS ?= e2e/journeys
.PHONY: e2e e2e-full
e2e: .venv
	@echo '--- what a cluster needs: Debian packages, and programs that are built once'
	$(PYTHON_IN_VENV) e2e/cluster/main.py build
	@echo '--- journeys on two real nodes, without the ones marked "full"'
	$(PYTHON_IN_VENV) -m pytest --timeout=600 -m 'not full' $(JOURNEYS)

e2e-full: .venv
	$(PYTHON_IN_VENV) e2e/cluster/main.py build kwok
	@echo '--- all journeys'
	$(PYTHON_IN_VENV) -m pytest --timeout=1800 $(JOURNEYS)

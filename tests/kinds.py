"""Which tests `make test` leaves to `make test-rest`, by kind. Those of tests/scale are in neither:
`make test-scale` has them."""

# Pages of the documentation that are followed word for word, and notebooks that are run.
DOCUMENTS = {"test_answers", "test_howto", "test_examples", "test_study", "test_own_study"}
# A browser, a server of MLflow, and databases that MLflow makes.
SERVERS = {"test_browser", "test_bulk_import", "test_mlflow_server", "test_tracking"}
# The package, installed outside of any checkout.
PACKAGE = {"test_wheel"}
# Commands that are killed, or that wait for others.
KILLS = {"test_resume", "test_locks", "test_clusters", "test_run"}
# Whole commands that train, again and again, in copies of the repository.
TRAININGS = {
    "test_ablation_walks",
    "test_pipeline",
    "test_verify",
    "test_tune",
    "test_trust",
    "test_extra_seeds",
    "test_export",
    "test_partial_cells",
    "test_overlay",
    "test_reports_ci",
    "test_benchmark_rounds",
    "test_benchmarks",
    "test_leakage",
}
# Names of files without .py. A single test of another file has the marker `rest` itself.
REST = DOCUMENTS | SERVERS | PACKAGE | KILLS | TRAININGS
# Fixtures that take long. A test of any file that uses one is of the rest.
FIXTURES = {
    # copies of the repository in which stages and commands run as processes, each of which reads all code
    "prepared",
    "toy",
    # the models of every method as files, which another process reads
    "exported",
}


def mark(item):
    """Give a test of these files, or with one of these fixtures, the marker `rest`."""
    if item.path.stem in REST or FIXTURES.intersection(item.fixturenames):
        item.add_marker("rest")

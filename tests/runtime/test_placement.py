"""Where torchrun, Slurm, Kubernetes and Ray Train have placed a process, as their variables say."""

from __future__ import annotations

import pytest

from paceline.errors import ConfigError
from paceline.launch.environment import FIRST_PORT, PORTS, Placement, nodes, placement, without_engine
from paceline.runs.engine import folder_of
from support.engines import jobset, pytorchjob, ray, slurm, torchrun

ENGINES = {"torchrun": torchrun, "Slurm": slurm, "PyTorchJob": pytorchjob, "JobSet": jobset, "Ray Train": ray}


def placed(environ: dict[str, str]) -> Placement:
    found = placement(environ)
    assert found is not None
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_all_hosts_agree_on_the_head_the_run_and_the_port(engine: str) -> None:
    found = [placed(ENGINES[engine](host, 3, "head")) for host in range(3)]
    assert [(one.engine, one.host, one.hosts, one.local, one.locals) for one in found] == [
        (engine, host, 3, 0, 1) for host in range(3)
    ]
    assert {one.head for one in found} == {"head"}
    assert len({(one.run, one.port, one.store, one.attempt) for one in found}) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_one_host_is_no_engines_business_nor_is_a_run_that_is_made_without_it(engine: str) -> None:
    assert placement(ENGINES[engine](0, 1, "head")) is None
    assert placement(without_engine(ENGINES[engine](1, 3, "head"))) is None


def test_without_an_engine_there_is_no_placement() -> None:
    assert placement({}) is None
    assert placement({"RANK": "0", "WORLD_SIZE": "4"}) is None


def test_torchruns_master_port_is_its_own_stores_if_it_has_one_and_none_is_no_identity() -> None:
    found = placed(torchrun(0, 2, "head"))
    assert (found.port, found.store, found.run, found.named) == (None, 29400, "digits", True)
    found = placed({**torchrun(0, 2, "head"), "TORCHELASTIC_USE_AGENT_STORE": "False"})
    assert (found.port, found.store) == (29400, None)
    found = placed({**torchrun(0, 2, "head"), "TORCHELASTIC_RUN_ID": "none"})
    assert (found.run, found.named) == ("head-29400", False)


def test_torchrun_wins_over_the_slurm_job_around_it() -> None:
    assert placed(slurm(1, 2, "a") | torchrun(0, 2, "head")).engine == "torchrun"
    assert placement(slurm(1, 2, "a") | torchrun(0, 1, "head")) is None


def test_variables_that_a_slurm_script_exports_for_a_process_group_are_not_read() -> None:
    own = {"MASTER_ADDR": "head", "MASTER_PORT": "29500", "RANK": "1", "WORLD_SIZE": "2"}
    assert placed(slurm(1, 2, "a") | own).engine == "Slurm"


def test_a_restart_is_counted_where_the_engine_says_so() -> None:
    assert placed({**torchrun(0, 2, "a"), "TORCHELASTIC_RESTART_COUNT": "3"}).attempt == 3
    assert placed({**slurm(0, 2, "a"), "SLURM_RESTART_COUNT": "2"}).attempt == 2


def test_slurms_batch_script_and_shell_have_one_task() -> None:
    of_the_job = {name: value for name, value in slurm(0, 2, "a").items() if "STEP" not in name}
    assert placement(of_the_job) is None
    assert placement({**slurm(0, 2, "a"), "SLURM_STEP_ID": "4294967290"}) is None
    assert placement({**slurm(0, 2, "a"), "SLURM_STEP_NUM_TASKS": "1"}) is None


def test_slurms_head_is_the_first_node_of_the_step() -> None:
    environ = {**slurm(1, 2, ""), "SLURM_STEP_NODELIST": "gpu[07,09]", "SLURM_JOB_NODELIST": "gpu[01-09]"}
    assert placed(environ).head == "gpu07"
    del environ["SLURM_STEP_NODELIST"]
    assert placed(environ).head == "gpu01"


def test_steps_of_a_slurm_job_and_its_neighbours_have_ports_of_their_own() -> None:
    jobs = [
        placed({**slurm(0, 2, "a"), "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)})
        for job in range(4711, 4731)
        for step in range(4)
    ]
    assert len({one.port for one in jobs}) == len({one.run for one in jobs}) == len(jobs)
    assert all(one.port is not None and FIRST_PORT <= one.port < FIRST_PORT + PORTS for one in jobs)


def test_a_jobset_may_number_its_pods_itself() -> None:
    environ = jobset(1, 2, "head")
    assert placed(environ | {"JOB_COMPLETION_INDEX": "0"}).host == 1
    del environ["PET_NODE_RANK"]
    assert placed(environ | {"JOB_COMPLETION_INDEX": "0"}).host == 0


def test_a_pytorchjob_that_has_the_variables_of_torchrun_too_is_one() -> None:
    """Newer operators set both. With several processes a pod, as they see it, WORLD_SIZE counts those."""
    for_torchrun = jobset(1, 2, "head") | {"PET_NPROC_PER_NODE": "4"}
    del for_torchrun["JOB_COMPLETION_INDEX"]
    found = placed(pytorchjob(1, 2, "head") | for_torchrun | {"WORLD_SIZE": "8"})
    assert (found.engine, found.host, found.hosts, found.head) == ("PyTorchJob", 1, 2, "head")


def test_kubernetes_leaves_the_master_port_to_the_head_and_rays_is_taken_so_another_follows_from_it() -> None:
    assert placed(pytorchjob(0, 2, "head")).port == 23456
    assert placed(jobset(0, 2, "head")).port == 29400
    port = placed(ray(0, 2, "head")).port
    assert port is not None
    assert FIRST_PORT <= port < FIRST_PORT + PORTS


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        (torchrun(0, 2, "a") | {"LOCAL_WORLD_SIZE": "4"}, ["LOCAL_WORLD_SIZE", "--nproc-per-node 1"]),
        (torchrun(0, 1, "a") | {"LOCAL_WORLD_SIZE": "4"}, ["LOCAL_WORLD_SIZE", "-n 4"]),
        (torchrun(2, 2, "a"), ["GROUP_RANK", "GROUP_WORLD_SIZE"]),
        (torchrun(0, 2, "a") | {"RANK": "1"}, ["GROUP_RANK", "RANK"]),
        (torchrun(0, 2, "a") | {"LOCAL_RANK": "1"}, ["LOCAL_RANK", "LOCAL_WORLD_SIZE"]),
        (torchrun(0, 2, "a") | {"GROUP_WORLD_SIZE": "two"}, ["GROUP_WORLD_SIZE", '"two"']),
        (torchrun(0, 2, "a") | {"MASTER_PORT": "70000"}, ["MASTER_PORT", '"70000"']),
        (torchrun(0, 2, "a") | {"MASTER_ADDR": ""}, ["MASTER_ADDR"]),
        (slurm(0, 2, "a") | {"SLURM_STEP_NUM_TASKS": "8"}, ["SLURM_STEP_NUM_TASKS", "--ntasks-per-node 1"]),
        (slurm(0, 2, "a") | {"SLURM_STEP_NUM_NODES": "3"}, ["SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"]),
        (slurm(0, 2, "a") | {"SLURM_PROCID": "1"}, ["SLURM_NODEID", "SLURM_PROCID"]),
        (slurm(0, 2, "a") | {"SLURM_NODEID": "2"}, ["SLURM_NODEID", "SLURM_STEP_NUM_NODES"]),
        (slurm(0, 2, "a") | {"SLURM_STEP_NODELIST": "gpu[3-1]"}, ["SLURM_STEP_NODELIST", '"gpu[3-1]"']),
        (pytorchjob(2, 2, "a"), ["RANK", "WORLD_SIZE"]),
        (pytorchjob(0, 2, "a") | {"WORLD_SIZE": "-2"}, ["WORLD_SIZE", '"-2"']),
        (jobset(0, 2, "a") | {"PET_NNODES": "2:4"}, ["PET_NNODES", '"2:4"']),
        (jobset(2, 2, "a"), ["PET_NODE_RANK", "PET_NNODES"]),
        (ray(0, 2, "a") | {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "2"}, ["WORLD_SIZE", "LOCAL_WORLD_SIZE"]),
        (ray(0, 2, "a") | {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, ["LOCAL_WORLD_SIZE", "-n 4"]),
    ],
)
def test_what_contradicts_or_cannot_be_read_is_said_in_one_line_with_its_variables(
    environ: dict[str, str], named: list[str]
) -> None:
    with pytest.raises(ConfigError) as raised:
        placement(environ)
    line = str(raised.value)
    assert "\n" not in line
    assert all(word in line for word in named), line


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("gpu[01-03,07],x5", ["gpu01", "gpu02", "gpu03", "gpu07", "x5"]),
        ("rack[1-2]n[09-10].lab", ["rack1n09.lab", "rack1n10.lab", "rack2n09.lab", "rack2n10.lab"]),
    ],
)
def test_a_list_of_nodes_is_expanded(text: str, names: list[str]) -> None:
    assert nodes(text) == names


@pytest.mark.parametrize("text", ["", "a[", "a]", "a[x]", "a[2-1]", "a b", "a[1-99999999]", "a[-]"])
def test_a_list_of_nodes_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="list of"):
        nodes(text)


def test_runs_that_are_not_called_the_same_have_folders_of_their_own() -> None:
    runs = ["a/b", "a:b", "a-b", "x" * 90, "x" * 91, "../up"]
    folders = [folder_of(placed({**torchrun(0, 2, "a"), "TORCHELASTIC_RUN_ID": run}), "bsp") for run in runs]
    assert len(set(folders)) == len(runs)
    assert {one.parent.name for one in folders} == {"runs"}
    assert all(len(one.name) < 120 for one in folders)

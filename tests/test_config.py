"""The configuration tree: what it takes, and what it says of what it does not take."""

import pytest
import yaml

from selfplay import presets
from selfplay.config import Config, checked, differences
from selfplay.tree import ConfigError, flat

EVERY_NAME = list(presets.names())


@pytest.mark.parametrize("name", EVERY_NAME)
def test_every_preset_can_be_played_and_survives_its_file(name, tmp_path):
    config = presets.preset(name)
    file = tmp_path / "config.yaml"
    file.write_text(presets.dumps(config))
    assert presets.read(file) == config
    assert presets.read(file).digest == config.digest


def test_the_laptop_is_the_default():
    assert presets.preset("laptop") == Config()


def test_a_single_agent_is_one_and_one():
    population = presets.preset("single-agent").population
    assert (population.teachers, population.students, population.single_agent) == (1, 1, True)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("learner.lrr=1", "learner.lrr: no such key; did you mean learner.lr?"),
        ("population.teacher=3", "did you mean population.teachers?"),
        ("teachers=3", "did you mean population.teachers?"),
        ("lr=3", "did you mean learner.lr?"),
        ("xyzzy=3", "xyzzy: no such key; there are base, style"),
        ("learner.lr=abc", "learner.lr is 'abc': input should be a valid number"),
        ("learner.lr=-1", "learner.lr is -1.0, it must be 0 or more"),
        ("learner.lr=.nan", "learner.lr is nan, it must be a finite number"),
        ("learner.lr=.inf", "learner.lr is inf, it must be a finite number"),
        ("learner=3", "learner is 3"),
        ("learner.loss=ppo", "'grpo', 'dr_grpo' or 'reinforce_pp_baseline'"),
        ("population.teachers=0", "population.teachers is 0: input should be greater than or equal to 1"),
        ("steps=1.5", "steps is 1.5: input should be a valid integer"),
        ("seed=-1", "seed is -1"),
        ("device=gpu", "device is 'gpu': must be cpu, cuda"),
        ("dtype=f16", "dtype is 'f16': input should be 'float32' or 'bfloat16'"),
        ("game.kinds=deductio", "must be different task kinds out of deduction, abduction, induction"),
        ("game.kinds=[deduction, deduction]", "must be different task kinds"),
        ("game.examples=3", "game.examples is 3: input should be a multiple of 2"),
        ("sampling.temperature=0", "sampling.temperature is 0: input should be greater than 0"),
        ("referee.hash_seeds=[1]", "referee.hash_seeds is (1,), it must name at least two"),
        ("replacement.every=-1", "replacement.every is -1, it must be 0 or more"),
        ("replacement.fraction=2", "replacement.fraction is 2"),
        ("replacement.mutations=[{operator: dare}]", "'dare' is no mutation; there are"),
        ("replacement.crossovers=[{operator: drae}]", "'drae' is no crossover; did you mean dare?"),
        ("replacement.mutations=[{operatr: gaussian}]", "did you mean replacement.mutations.0.operator?"),
        ("replacement.mutations=[{operator: gaussian, params: {strenth: 1}}]", "gaussian has no parameter 'strenth'"),
        ("writers=[excel]", "input should be 'tensorboard' or 'wandb'"),
        ("foo", "does not read key=value"),
        ("steps=[", "the value is no YAML"),
    ],
)
def test_what_is_wrong_is_named(change, said):
    with pytest.raises(ConfigError) as error:
        presets.preset("laptop", [change])
    assert said in str(error.value)


def test_several_mistakes_are_named_at_once():
    with pytest.raises(ConfigError, match=r"seed is -1.*; population\.teachers is 0"):
        presets.preset("laptop", ["seed=-1", "population.teachers=0"])


def test_a_single_agent_with_several_teachers_is_refused():
    with pytest.raises(ConfigError, match=r"population.teachers 3 and students 1 must be 1"):
        presets.preset("laptop", ["population.single_agent=true", "population.teachers=3"])


def test_values_are_yaml_and_one_text_is_a_row_of_one():
    config = presets.preset(
        "laptop", ["learner.lr=1e-4", "game.kinds=deduction", "style=chat", "replacement.grace=null", "writers=tensorboard"]
    )
    assert config.learner.lr == 1e-4
    assert config.game.kinds == ("deduction",)
    assert config.style == "chat"
    assert config.replacement.grace is None
    assert config.writers == ("tensorboard",)


def test_operators_and_their_parameters_come_from_the_toolkit():
    config = presets.preset("laptop", ["replacement.mutations=[{operator: gaussian, weight: 2, params: {strength: 0.3}}]"])
    (breed,) = config.replacement.mutations
    assert (breed.operator, breed.weight, breed.params) == ("gaussian", 2.0, {"strength": 0.3})


@pytest.mark.parametrize(("text", "said"), [("- 1\n", "holds no mapping"), ("a: [", "cannot be read"), (None, "cannot be read")])
def test_files_that_are_no_configuration(text, said, tmp_path):
    file = tmp_path / "game.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=said) as error:
        presets.read(file)
    assert str(file) in str(error.value)


def test_a_mistake_in_a_file_names_the_file(tmp_path):
    file = tmp_path / "game.yaml"
    file.write_text("learner: {lrr: 1}\n")
    with pytest.raises(ConfigError, match=r"game\.yaml: learner\.lrr"):
        presets.read(file)


def test_an_unknown_preset():
    with pytest.raises(ConfigError, match="did you mean laptop"):
        presets.preset("labtop")


def test_differences_leave_out_what_may_change():
    old = Config()
    new = presets.preset("laptop", ["steps=7", "checkpoint.keep=9", "referee.workers=3", "learner.lr=0.5", "game.rule=majority"])
    assert differences(old, new) == ["game.rule: 'expected' -> 'majority'", "learner.lr: 0.001 -> 0.5"]
    assert old.with_changes(steps=7).digest == old.digest != new.digest


def test_nothing_can_be_changed_afterwards():
    config = Config()
    with pytest.raises(Exception, match="frozen"):
        config.steps = 3
    assert checked({}) == config


def test_every_leaf_of_a_preset_is_a_key_of_the_tree():
    whole = flat(Config().tree())
    for name in EVERY_NAME:
        given = flat(yaml.safe_load(presets.text(name)))
        assert given.keys() <= whole.keys(), name

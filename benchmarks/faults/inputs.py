"""What hurried people type and write: options that do not fit, files that are malformed or from elsewhere."""

import json
import os
import shutil

from benchmarks.faults import Bench, fault


@fault("a branch that the family does not have", "exit 2, the branches that there are")
def unknown_branch(bench: Bench) -> str:
    return bench.q36eval("gate", "--branch", "fp8-heda", *bench.weights_alone).told(exit=2, says="fp8-head")


@fault("a folder that holds no checkpoint is named as the branch", "exit 2, what a checkpoint is")
def empty_folder(bench: Bench) -> str:
    (bench.folder / "empty").mkdir()
    return bench.q36eval("gate", "--branch", bench.folder / "empty", *bench.weights_alone).told(
        exit=2, says="config.json"
    )


@fault("a policy with a misspelt key", "exit 2, the key and where it stands")
def misspelt_key(bench: Bench) -> str:
    policy = bench.folder / "weights.yaml"
    policy.write_text(policy.read_text().replace("kind: max_count", "kinds: max_count"))
    return bench.q36eval("gate", "--branch", "main", *bench.weights_alone).told(exit=2, says="kinds")


@fault("a policy whose margin is not a number", "exit 2, the criterion and its value")
def margin_of_words(bench: Bench) -> str:
    policy = bench.folder / "weights.yaml"
    policy.write_text(policy.read_text().replace("value: 0", "value: none"))
    return bench.q36eval("gate", "--branch", "main", *bench.weights_alone).told(exit=2, says="value")


@fault("a policy whose margin is NaN", "exit 2: no figure could ever miss it")
def margin_nan(bench: Bench) -> str:
    policy = bench.folder / "weights.yaml"
    policy.write_text(policy.read_text().replace("value: 0", "value: .nan"))
    return bench.q36eval("gate", "--branch", "main", *bench.weights_alone).told(exit=2, says="value")


@fault("a policy without criteria", "exit 2: it would pass anything")
def no_criteria(bench: Bench) -> str:
    (bench.folder / "weights.yaml").write_text("name: empty\ncriteria: []\n")
    return bench.q36eval("gate", "--branch", "main", *bench.weights_alone).told(exit=2, says="criteria")


@fault("a policy in which a criterion stands twice under one id", "exit 2, the id")
def id_twice(bench: Bench) -> str:
    policy = bench.folder / "weights.yaml"
    text = policy.read_text()
    policy.write_text(text + text[text.index("  - {id") :])
    return bench.q36eval("gate", "--branch", "main", *bench.weights_alone).told(exit=2, says="intact")


@fault("a policy file that is no text", "exit 2, one sentence")
def binary_policy(bench: Bench) -> str:
    (bench.folder / "weights.yaml").write_bytes(os.urandom(4096))
    return bench.q36eval("gate", "--branch", "main", *bench.weights_alone).told(exit=2, says="weights.yaml")


@fault("a policy that expands to billions of values (YAML aliases within aliases)", "exit 2 in seconds, memory bounded")
def yaml_bomb(bench: Bench) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    (bench.folder / "weights.yaml").write_text("\n".join([*lines, "name: *a11", "criteria: *a11"]) + "\n")
    done = bench.bash('ulimit -v 8000000; "$@"', "gate", "--branch", "main", *bench.weights_alone)
    return done.told(exit=2, says="weights.yaml")


@fault("a policy asks for KL, and the probe is skipped", "INCONCLUSIVE, exit 3: what is not measured never passes")
def skipped_probe(bench: Bench) -> str:
    skipped = ("--skip", "kl", "--skip", "evals", "--skip", "canaries")
    return bench.q36eval("gate", "--branch", "bf16", "--policy", bench.folder / "kl.yaml", *skipped).told(exit=3)


@fault("a family file whose reference is missing on disk", "exit 2, the folder")
def missing_reference(bench: Bench) -> str:
    done = bench.q36eval("gate", "--branch", "fp8-head", "--reference", bench.folder / "bf16", *bench.weights_alone)
    return done.told(exit=2, says="bf16")


@fault("a corpus whose documents are all empty", "exit 2: there is nothing to measure on")
def empty_corpus(bench: Bench) -> str:
    texts = bench.folder / "texts.jsonl"
    texts.write_text("".join(json.dumps({"id": f"d{n}", "slice": "a", "text": ""}) + "\n" for n in range(12)))
    (bench.folder / "corpus.yaml").write_text("name: empty\njson_lines: [{path: texts.jsonl}]\non_policy: null\n")
    options = ("--policy", bench.folder / "kl.yaml", "--skip", "evals", "--skip", "canaries")
    return bench.q36eval("gate", "--branch", "fp8-head", "--corpus", bench.folder / "corpus.yaml", *options).told(
        exit=2
    )


@fault("a corpus in which two documents have one id", "exit 2, the id and both lines")
def twice_in_corpus(bench: Bench) -> str:
    line = json.dumps({"id": "same", "slice": "a", "text": "A short text that stands here twice."}) + "\n"
    (bench.folder / "texts.jsonl").write_text(line * 2)
    (bench.folder / "corpus.yaml").write_text("name: twice\njson_lines: [{path: texts.jsonl}]\non_policy: null\n")
    options = ("--policy", bench.folder / "kl.yaml", "--skip", "evals", "--skip", "canaries")
    done = bench.q36eval("gate", "--branch", "fp8-head", "--corpus", bench.folder / "corpus.yaml", *options)
    return done.told(exit=2, says="same")


@fault("the branch's tokenizer maps two tokens the other way round", "never PASS: it would be asked other things")
def other_tokenizer(bench: Bench) -> str:
    branch = bench.copy("fp8-head")
    tokenizer = json.loads((branch / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    one, other = list(vocabulary)[300:302]
    vocabulary[one], vocabulary[other] = vocabulary[other], vocabulary[one]
    (branch / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    bench.reference()
    done = bench.q36eval("gate", "--branch", branch, *bench.small)
    assert done.exit in (1, 3), done.sentence
    return done.told(exit=done.exit, says="tokenizer")


@fault("the branch's chat template is another, and canaries are asked", "exit 1 or 3, the template is named")
def other_template(bench: Bench) -> str:
    branch = bench.copy("fp8-head")
    place = next(branch / name for name in ("chat_template.jinja", "tokenizer_config.json") if (branch / name).exists())
    text = place.read_text(encoding="utf-8")
    place.write_text(text.replace("assistant", "asistent"), encoding="utf-8")
    bench.reference()
    done = bench.q36eval("gate", "--branch", branch, *bench.small)
    assert done.exit in (1, 3), done.sentence
    return done.told(exit=done.exit, says="template")


@fault("the branch's config.json says a billion layers", "FAIL, exit 1, in seconds; `inspect` names the field")
def billion_layers(bench: Bench) -> str:
    branch = bench.copy("fp8-head")
    config = json.loads((branch / "config.json").read_text())
    (config.get("text_config") or config)["num_hidden_layers"] = 10**9
    (branch / "config.json").write_text(json.dumps(config))
    return bench.q36eval("gate", "--branch", branch, *bench.weights_alone).told(exit=1)


@fault(
    "the branch brings Python code of its own (auto_map, modeling.py)",
    "it is never run, and the gate says nothing else",
)
def remote_code(bench: Bench) -> str:
    branch, ran = bench.copy("fp8-head"), bench.folder / "ran"
    (branch / "modeling.py").write_text(f"open({str(ran)!r}, 'w').write('ran')\n")
    config = json.loads((branch / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling.Model", "AutoConfig": "modeling.Config"}
    (branch / "config.json").write_text(json.dumps(config))
    bench.reference()
    done = bench.q36eval("gate", "--branch", branch, *bench.small)
    assert not ran.exists(), "the code was run"
    return done.told(exit=0) + "; the code was not run"


@fault("weights arrive as a pickle (pytorch_model.bin) beside config.json", "exit 2 or 1, nothing is unpickled")
def pickled(bench: Bench) -> str:
    branch, ran = bench.copy("fp8-head"), bench.folder / "ran"
    (branch / "model.safetensors").unlink()
    (branch / "pytorch_model.bin").write_bytes(f"cos\nsystem\n(S'touch {ran}'\ntR.".encode())
    done = bench.q36eval("gate", "--branch", branch, *bench.weights_alone)
    assert not ran.exists(), "it was unpickled"
    assert done.exit in (1, 2), done.sentence
    return done.told(exit=done.exit) + "; nothing was unpickled"


@fault("a chat template that reaches for Python's insides", "never PASS; nothing is run")
def hostile_template(bench: Bench) -> str:
    branch, ran = bench.copy("fp8-head"), bench.folder / "ran"
    reach = "{{ cycler.__init__.__globals__.os.system('touch RAN') }}".replace("RAN", str(ran))
    (branch / "chat_template.jinja").write_text(reach)
    done = bench.q36eval("canaries", "--branch", branch, "--draws", "1")
    assert not ran.exists(), "the template reached the shell"
    assert done.exit in (1, 2, 4), done.sentence
    return done.told(exit=done.exit) + "; nothing was run"


@fault("the branch is a symbolic link that points at itself", "exit 2, one sentence")
def link_loop(bench: Bench) -> str:
    (bench.folder / "loop").symlink_to(bench.folder / "loop")
    return bench.q36eval("gate", "--branch", bench.folder / "loop", *bench.weights_alone).told(exit=2, says="loop")


@fault(
    "every file that is named is a link to itself: policy, family, corpus, waivers, reports' folder", "exit 2 each time"
)
def links_everywhere(bench: Bench) -> str:
    loop = bench.folder / "loop.yaml"
    loop.symlink_to(loop)
    seen = []
    for option in ("--policy", "--family", "--corpus", "--waivers-from", "--out", "--reference", "--suite"):
        done = bench.q36eval("gate", "--branch", "fp8-head", "--skip", "canaries", option, loop)
        seen.append(f"{option}: {done.told(exit=2, says='loop')}")
    return seen[0] + " and so on"


@fault("a weight file is a named pipe", "exit 1, 2 or 4 at once: nothing hangs")
def named_pipe(bench: Bench) -> str:
    branch = bench.copy("fp8-head")
    (branch / "model.safetensors").unlink()
    os.mkfifo(branch / "model.safetensors")
    done = bench.bash('timeout 60 "$@"', "gate", "--branch", branch, *bench.weights_alone)
    assert done.exit in (1, 2, 4), f"exit {done.exit}: {done.sentence}"
    return done.told(exit=done.exit)


@fault("no read permission for the branch's weights (as another user)", "exit 4: that says nothing of the branch")
def unreadable(bench: Bench) -> str:
    branch = bench.copy("fp8-head")
    (branch / "model.safetensors").chmod(0)
    if os.geteuid() == 0:  # root reads everything: as nobody, who may write only the state
        if shutil.which("setpriv") is None:
            return "not run here: root reads everything, and there is no setpriv"
        bench.state.mkdir(parents=True, exist_ok=True)
        for place in (bench.folder, bench.state):
            place.chmod(0o777)
        line = 'setpriv --reuid=65534 --regid=65534 --clear-groups "$@"'
        done = bench.bash(line, "gate", "--branch", branch, *bench.weights_alone, HOME=str(bench.folder))
    else:
        done = bench.q36eval("gate", "--branch", branch, *bench.weights_alone)
    return done.told(exit=4, says="cannot be read")

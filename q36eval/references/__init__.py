"""Reference packs: a reference's captures on disk, reused by every gate and portable to other machines.

A **pack** is a folder of captures of one reference deployment; a **capture** is one probe's data from it:

    <pack>/<probe>-<key>/capture.json           its description: identity, probe, suite, kind; written first
                         shared.safetensors     tensors shared by all items (the head [V, H]), or shared.json: the hash
                         items/<hash>.safetensors   one item with tensors, written as soon as it is finished
                         answers.jsonl          all items without tensors, by key
                         journal.jsonl          the finished items of an unfinished capture; removed at the end
                         pack.json              the manifest: every file's SHA-256 and size, and totals; written last
    <pack>/chat_templates.json                  the chat templates that rendered the reference's prompts, by name
    <pack>/last-used                            empty; its time is when the pack was last opened by a gate or a capture

Every file is written atomically, and none depends on when or how often the work was interrupted: a capture that was
killed and resumed is byte for byte identical to an uninterrupted one.

It may import `q36eval.records`, `q36eval.probes` and `q36eval.checkpoints`; torch and safetensors only where tensors
are read, since packs are listed without them.
"""

from q36eval.probes import Kind
from q36eval.references._capture import Capture, capture_key, pack_folder
from q36eval.references._fetched import fetched, is_address, shown
from q36eval.references._files import cannot_write, write_whole
from q36eval.references._manifest import Header, Manifest, damage, load_header, load_manifest
from q36eval.references._pack import Pack, captures_in, mark_used, use_of

__all__ = [
    "Capture",
    "Header",
    "Kind",
    "Manifest",
    "Pack",
    "cannot_write",
    "capture_key",
    "captures_in",
    "damage",
    "fetched",
    "is_address",
    "load_header",
    "load_manifest",
    "mark_used",
    "pack_folder",
    "shown",
    "use_of",
    "write_whole",
]

"""Lays rows out as `datasets` caches a dataset of the hub, so that its own code finds them without network."""

from collections.abc import Mapping, Sequence
from pathlib import Path

COMMIT = "b08601e04326c79dfdd32d625aee71d232d685c3"


def cache_dataset(
    root: Path,
    name: str,
    config: str,
    splits: Mapping[str, Sequence[object]],
    commit: str = COMMIT,
    column: str = "text",
) -> Path:
    """Write the splits of `namespace/dataset` below the cache folder `root`; returns the folder of the dataset."""
    from datasets import Dataset, DatasetInfo, SplitDict, SplitInfo, Version
    from datasets.arrow_writer import ArrowWriter

    namespace, _, dataset = name.partition("/")
    folder = root / f"{namespace}___{dataset}" / config / "0.0.0" / commit
    folder.mkdir(parents=True)
    infos = SplitDict(dataset_name=dataset)
    features = None
    for split, rows in splits.items():
        held = Dataset.from_dict({column: list(rows)})
        features = held.features
        with ArrowWriter(path=str(folder / f"{dataset}-{split}.arrow"), features=features) as writer:
            writer.write_table(held.data.table)
            writer.finalize()
        infos.add(SplitInfo(name=split, num_examples=len(rows), dataset_name=dataset))
    info = DatasetInfo(
        features=features,
        builder_name="parquet",
        dataset_name=dataset,
        config_name=config,
        version=Version("0.0.0"),
        splits=infos,
    )
    info.write_to_directory(str(folder))
    return folder

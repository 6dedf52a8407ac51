"""llama.cpp's converter as a library, for the programs beside this file that write fixtures.

`use` says where llama.cpp lies; its modules (`gguf`, `conversion`) can be imported after that."""

import sys


def use(llama_cpp):
    sys.path[:0] = [str(llama_cpp), str(llama_cpp / "gguf-py")]


def text_class(folder):
    """The converter's class for a checkpoint."""
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    hparams = ModelBase.load_hparams(folder, False)
    return get_model_class(get_model_architecture(hparams, ModelType.TEXT), mmproj=False)


def tower_class(folder):
    """The converter's class for the towers of a checkpoint."""
    from conversion import ModelBase, ModelType, get_model_architecture, get_model_class
    hparams = ModelBase.load_hparams(folder, False)
    return get_model_class(get_model_architecture(hparams, ModelType.MMPROJ), mmproj=True)


def file_type(outtype):
    """The converter's number of a type that `--outtype` takes."""
    from gguf import LlamaFileType
    return LlamaFileType[("ALL_" if outtype == "f32" else "MOSTLY_") + outtype.upper()]


def without_vocabulary(cls):
    cls.set_vocab = lambda self: self._set_vocab_none()


def convert(folder, outtype, out, **options):
    """Writes what the converter makes of a checkpoint, without a vocabulary; options are spelled as its own attributes."""
    import torch
    with torch.inference_mode():
        cls = text_class(folder)
        without_vocabulary(cls)
        cls(folder, file_type(outtype), out, **options).write()


def key_row(field):
    """A key of a GGUF reader as fixtures have it: name, type, value."""
    from gguf import GGUFValueType
    kind, value = field.types[0], field.contents()
    if kind == GGUFValueType.ARRAY:
        return [field.name, f"arr[{field.types[1].name.lower()}]", value]
    return [field.name, kind.name.lower(), value]

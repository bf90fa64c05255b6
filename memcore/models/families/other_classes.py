"""Classes that no family plans, and whose parameters are those of one that it has, with more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from memcore.models import families
from memcore.models.config import Keys
from memcore.models.families.counted import of_parameters
from memcore.models.families.family import labels
from memcore.models.model import Model
from memcore.models.sizes import linear

MASKED, SEQUENCES, TOKENS = "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"
WRITES, IMAGES = "ForConditionalGeneration", "ForImageClassification"


@dataclass(frozen=True, slots=True)
class Of:
    """The other classes of the architecture that a config is of. `stem`: what their names begin
    with."""

    stem: str
    config: Mapping[str, Any]

    def model(self, end: str, **own: Any) -> Model:
        return families.from_config({**self.config, "architectures": [self.stem + end], **own})

    def __call__(self, end: str, **own: Any) -> int:
        """Parameters of the class that ends so."""
        return families.weights_of(self.model(end, **own))

    @property
    def classifier(self) -> int:
        """Parameters of one output of a classifier, with its bias."""
        return self(TOKENS, num_labels=2) - self(TOKENS, num_labels=1)


def _pretrained(of: Of) -> int:
    """Masked tokens, and of a pair of sentences whether one follows the other."""
    return of(MASKED) + of(SEQUENCES, num_labels=2) - of(TOKENS, num_labels=2) + 2 * of.classifier


def _without_head(of: Of) -> int:
    return of(WRITES, tie_word_embeddings=True)


def _ends(of: Of) -> int:
    """The ends of an answer."""
    return of("Model") + linear(of.model(WRITES).hidden_size, 2)


def _taught(of: Of) -> int:
    """A classifier of the class's token, and one of the teacher's."""
    one = of(IMAGES, num_labels=2) - of(IMAGES, num_labels=1)
    return of(IMAGES) + one * labels(Keys(of.config, {}))


@dataclass(frozen=True, slots=True)
class Like:
    """needs: how the classes end that it is counted from."""

    count: Callable[[Of], int]
    needs: tuple[str, ...]


ENDS: dict[str, Like] = {
    "ForMultipleChoice": Like(lambda of: of(SEQUENCES, num_labels=1), (SEQUENCES,)),
    "ForNextSentencePrediction": Like(lambda of: of(SEQUENCES, num_labels=2), (SEQUENCES,)),
    "ForPreTraining": Like(_pretrained, (MASKED, SEQUENCES, TOKENS)),
    "LMHeadModel": Like(lambda of: of(MASKED), (MASKED,)),
    "ForCausalLM": Like(lambda of: of(MASKED), (MASKED,)),
    "ForImageClassificationWithTeacher": Like(_taught, (IMAGES,)),
    "Model": Like(_without_head, (WRITES,)),
    "ForQuestionAnswering": Like(_ends, (WRITES,)),
}
# The same of architectures whose classifiers are not alike.
_CHOOSES = Like(lambda of: of("Model") + of.classifier, ("Model", TOKENS))
APART = {
    "AlbertForPreTraining": Like(
        lambda of: of(MASKED) + of(SEQUENCES) - of(TOKENS, num_labels=1) + of.classifier,
        (MASKED, SEQUENCES, TOKENS),
    ),
    "BigBirdForMultipleChoice": _CHOOSES,
    "BigBirdForPreTraining": Like(lambda of: of(MASKED) + 2 * of.classifier, (MASKED, TOKENS)),
    "ConvBertForMultipleChoice": _CHOOSES,
    "RoFormerForMultipleChoice": _CHOOSES,
    "MarianModel": Like(lambda of: of("MTModel", tie_word_embeddings=True), ("MTModel",)),
}
# Heads that are never tied, whatever a config says.
APART |= {
    f"{stem}Model": Like(
        lambda of: of(WRITES) - of.model(WRITES).vocab_size * of.model(WRITES).hidden_size,
        (WRITES,),
    )
    for stem in ("MT5", "UMT5")
}


def of_another_class(
    config: Mapping[str, Any], named: str, classes: Mapping[str, str], label: str
) -> Model | None:
    """The model of a class that its family, which has `classes`, does not plan; None where its
    parameters are not known either. Raises PlanError."""
    if named in classes:
        return None
    for end, usual in ENDS.items():
        like, stem = APART.get(named, usual), named.removesuffix(end)
        if named.endswith(end) and all(stem + need in classes for need in like.needs):
            of = Of(stem, config)
            read = of.model(like.needs[0])
            if read.counted and WRITES in like.needs:  # whose width is not known here
                return None
            found = of_parameters(like.count(of), label)
            return replace(found, notes=read.notes, reading=read.reading)
    return None

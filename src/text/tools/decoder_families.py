"""The tokenizers of today's decoders in small: each family's steps around a vocabulary trained on a few texts."""

import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
MARKS_AND_SPACE = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"\p{N}{1,3}" + MARKS_AND_SPACE
QWEN = CONTRACTIONS + r"\p{N}" + MARKS_AND_SPACE
# GPT-4o, gpt-oss, Phi-4: openai/tiktoken, openai_public.py.
CASED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{CASED[0]}*{CASED[1]}+{ENDING}"
    rf"[^\r\n\p{{L}}\p{{N}}]?{CASED[0]}+{CASED[1]}*{ENDING}"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# DeepSeek-V3's tokenizer.json.
DEEPSEEK = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
MARK = "\u2581"


def special(content, **flags):
    return AddedToken(content, special=True, normalized=False, **flags)


def byte_level(vocab_size, special_tokens):
    return trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )


def split(*expressions, removes=False):
    steps = [
        pre_tokenizers.Split(Regex(expression), "removed" if removes else "isolated", removes) for expression in expressions
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(steps)


def of_bytes(texts, size, special_tokens, pre_tokenizer, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.train_from_iterator(texts, byte_level(size, special_tokens))
    return tokenizer


def begins_with(tokenizer, token):
    template = processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token}:1 $B:1", special_tokens=[(token, tokenizer.token_to_id(token))]
    )
    return template


def gpt_neox(texts, size):
    tokenizer = of_bytes(
        texts, size, ["<|endoftext|>", "<|padding|>"], pre_tokenizers.ByteLevel(add_prefix_space=False), normalizers.NFC()
    )
    tokenizer.add_tokens([AddedToken(" " * count, normalized=True) for count in range(24, 1, -1)])
    return tokenizer


def smollm2(texts, size):
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return of_bytes(texts, size, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], pre_tokenizers.Sequence(steps))


def llama3(texts, size):
    tokenizer = of_bytes(texts, size, [], split(LLAMA3))
    tokenizer.add_special_tokens([special("<|begin_of_text|>"), special("<|end_of_text|>"), special("<|eot_id|>")])
    steps = [processors.ByteLevel(trim_offsets=True), begins_with(tokenizer, "<|begin_of_text|>")]
    tokenizer.post_processor = processors.Sequence(steps)
    return edited(tokenizer, lambda document: document["model"].update(ignore_merges=True))


def qwen2(texts, size):
    tokenizer = of_bytes(texts, size, [], split(QWEN), normalizers.NFC())
    tokenizer.add_special_tokens([special("<|endoftext|>"), special("<|im_start|>"), special("<|im_end|>")])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("cafe\u0301 au", normalized=True)])
    return tokenizer


def o200k(texts, size):
    tokenizer = of_bytes(texts, size, [], split(O200K, removes=True))
    tokenizer.add_special_tokens([special("<|endoftext|>"), special("<|im_end|>")])
    return tokenizer


def deepseek(texts, size):
    tokenizer = of_bytes(texts, size, [], split(*DEEPSEEK))
    tokenizer.add_special_tokens([special("<|endoftext|>")])
    return tokenizer


def expressions(texts, size):
    """Expressions that leave text between their matches, with patterns that are automata between and after them."""
    steps = [
        pre_tokenizers.Split(Regex(r"\p{N}{1,2}|[^\s\p{N}]+|(?<=\S)\s+$"), "isolated"),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Split(Regex(r"(?i:'s|'t)|[a-z]+|\d|\s+(?!\S)|\s+|(?<=[a-z])."), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
    return of_bytes(texts, size, ["<|endoftext|>"], pre_tokenizers.Sequence(steps))


def of_characters(texts, size, normalizer, pre_tokenizer, decoder, across=False):
    """Trained on words, as SentencePiece does, or, with `across`, on whole lines, whose tokens hold marks inside."""
    trained = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trained.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    if not across:
        trained.pre_tokenizer = pre_tokenizers.Metaspace(MARK, "never", True)
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=["<unk>", "<s>", "</s>"] + byte_tokens, limit_alphabet=120, show_progress=False
    )
    lines = [line for text in texts for line in text.splitlines() if line]
    trained.train_from_iterator(lines, trainer)
    template = begins_with(trained, "<s>")

    def edit(document):
        names = ("<unk>", "<s>", "</s>")
        document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] in names]
        document["pre_tokenizer"] = document["normalizer"] = None

    tokenizer = edited(trained, edit)
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    tokenizer.post_processor = template
    return tokenizer


def llama_decoder():
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return decoders.Sequence(steps)


def llama_normalizer():
    return normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])


def llama2(texts, size):
    return of_characters(texts, size, llama_normalizer(), None, llama_decoder())


def llama2_across(texts, size):
    tokenizer = of_characters(texts, size, llama_normalizer(), None, llama_decoder(), across=True)
    tokenizer.add_tokens([AddedToken("in the", normalized=True), AddedToken("  ", normalized=False)])
    return tokenizer


def mistral(texts, size):
    return of_characters(texts, size, None, pre_tokenizers.Metaspace(MARK, "first", False), llama_decoder())


def metaspace(texts, size):
    decoder = decoders.Sequence([decoders.Metaspace(MARK, "always"), decoders.ByteFallback(), decoders.Fuse()])
    return of_characters(texts, size, None, pre_tokenizers.Metaspace(MARK, "always", True), decoder)


def edited(tokenizer, edit):
    document = json.loads(tokenizer.to_str())
    edit(document)
    return Tokenizer.from_str(json.dumps(document))


FAMILIES = {
    "gpt_neox": gpt_neox,
    "smollm2": smollm2,
    "llama3": llama3,
    "qwen2": qwen2,
    "o200k": o200k,
    "deepseek": deepseek,
    "expressions": expressions,
    "llama2": llama2,
    "llama2_across": llama2_across,
    "mistral": mistral,
    "metaspace": metaspace,
}

//! Built-in texts: samples on which tokenizers differ, for the checks without prompts, and a text to score if none is
//! given.

use crate::PromptSource;

/// Text of about 1,500 tokens in the public domain: novels, speeches, verses in nine languages, and code. It is enough
/// to see whether a model predicts text at all, or to compare a model with its baseline. It is too short and too mixed
/// to rank models.
pub const BUILTIN_TEXT: &str = include_str!("builtin.txt");

/// Returns true if the only prompt is the built-in text.
pub(super) fn is_builtin(prompts: &[PromptSource]) -> bool {
    matches!(prompts, [PromptSource::Text(text)] if text == BUILTIN_TEXT)
}

/// Short texts, each with something that a splitter, a normalizer or a vocabulary can get wrong.
pub(super) const SAMPLES: &[&str] = &[
    "Hello, world!",
    " leading blank",
    "trailing blank ",
    "two  blanks,   three,    four",
    "\ttab\t\ttwo tabs",
    "line\nline\n\nline\r\nline\r\rline\n \n  \n",
    "   \n   indented\n\t\n",
    "I'm you're he's we'll they'd I've don't",
    "I'M YOU'RE HE'S DON'T 'S 'Twas rock'n'roll it’s",
    "1 12 123 1234 12345 123456 1234567 3.14159 1,000,000 1e-5 0x1F",
    "x²+y³=z½ Ⅳ ٣٤٥ १२३ ４５６",
    "fn main() { let x = vec![1, 2]; println!(\"{:?}\", x); } // done\n",
    "for i in range(10):\n    if i % 2 == 0:\n        print(f'{i:>3}')\n",
    "https://example.org/a-b_c?q=1&r=%20#top user@example.org C:\\temp\\new",
    "CamelCaseWords snake_case_words kebab-case-words SCREAMING_CASE iPhone",
    "!!! ... ?!? --- *** ((())) [[{}]] <|> <<>> @#$%^&*",
    "naïve café Straße ÆØÅ Łódź İstanbul ıſ",
    "e\u{301} a\u{308} o\u{302}\u{301} n\u{303} 각 가\u{11a8}",
    "日本語のテキスト、漢字とカタカナ。中文没有空格。한국어 문장입니다.",
    "Привет, мир! Ελληνικά עברית العَرَبِيَّة हिन्दी ไทย தமிழ்",
    "🙂 👍🏽 👨\u{200d}👩\u{200d}👧 🇩🇪 ❤\u{fe0f} \u{1f9d1}\u{200d}\u{1f680}",
    "a\u{a0}b\u{2003}c\u{3000}d\u{200b}e\u{ad}f\u{2028}g\u{85}h",
    "\u{feff}mark \u{fffd} \u{e000} \u{10ffff}",
    "control \u{1}\u{7f} end",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "                                                                ",
    "ﬁ ﬂ ™ ℡ ① ㌔ ｱ",
    "“quoted” ‘single’ – — … • § ¶ © ®",
];

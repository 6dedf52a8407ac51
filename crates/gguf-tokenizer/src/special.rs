//! Special tokens: the ids of roles and the tokens added to text, as declared by `tokenizer_config.json`, the
//! post-processor of `tokenizer.json`, and `config.json`. The order of discovery is the order of the keys.
//!
//! # Exactness
//! Follows gguf-py 0.5.0's `SpecialVocab` with its oddities: only the first and last member of a template are examined,
//! and a begin token given as an object counts as different from its own text.

use crate::Result;
use serde_json::Value as Json;

use gguf_format::{Array, FILE_ROLES, Metadata, SpecialToken, Value};

use super::TokenizerWarning;
use super::chat_template::ChatTemplates;
use super::emit::TokenList;
use super::files::{CONFIG, Directory};
use super::hf_json::HfJson;

/// Roles that have a key; others are recognized but not written.
const ID_KEYS: [(&str, &str); 8] = [
    ("bos", "tokenizer.ggml.bos_token_id"),
    ("eos", "tokenizer.ggml.eos_token_id"),
    ("unk", "tokenizer.ggml.unknown_token_id"),
    ("sep", "tokenizer.ggml.seperator_token_id"),
    ("pad", "tokenizer.ggml.padding_token_id"),
    ("mask", "tokenizer.ggml.mask_token_id"),
    ("eot", "tokenizer.ggml.eot_token_id"),
    ("eom", "tokenizer.ggml.eom_token_id"),
];

/// Returns the key that holds the id of a role.
pub(super) fn id_key(role: &str) -> Option<&'static str> {
    ID_KEYS.iter().find(|row| row.0 == role).map(|row| row.1)
}

/// Roles with a flag for adding the token to text.
const FLAG_KEYS: [(&str, &str); 3] = [
    ("bos", "tokenizer.ggml.add_bos_token"),
    ("eos", "tokenizer.ggml.add_eos_token"),
    ("sep", "tokenizer.ggml.add_sep_token"),
];

/// Special tokens declared by the files.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpecialTokens {
    /// Id of each role, in order of discovery.
    pub ids: Vec<(String, u64)>,
    /// Flag of each role for adding its token, in order of discovery.
    pub add: Vec<(String, bool)>,
    /// Chat templates.
    pub chat: ChatTemplates,
    /// True if text is converted to lower case.
    pub lowercase: Option<bool>,
    /// True if accents are removed.
    pub strip_accents: Option<bool>,
    n_tokens: u64,
}

impl SpecialTokens {
    /// Reads the files. Negative ids and those beyond the written `tokens` are ignored here, and reported when the finished keys
    /// are checked. `roles` replaces the list of roles.
    pub(crate) fn read(
        directory: &Directory<'_>,
        hf: Option<&HfJson>,
        tokens: &TokenList,
        roles: Option<&[String]>,
        warnings: &mut Vec<TokenizerWarning>,
    ) -> Result<Self> {
        let mut special = Self { n_tokens: tokens.len(), ..Self::default() };
        let mut roles = match roles {
            Some(roles) => roles.to_vec(),
            None => FILE_ROLES.iter().map(|&role| role.to_owned()).collect(),
        };
        let mut config = Some(directory.tree(CONFIG)?).filter(Json::is_object).unwrap_or_default();
        if let Some(hf) = hf {
            special.read_normalizer(&hf.normalizer, 0);
            special.read_post_processor(&hf.post_processor, &mut config, &mut roles);
        }
        special.chat = ChatTemplates::read(directory, &config, warnings)?;
        special.read_config(&config, hf, tokens, &roles);
        let model = directory.tree("config.json")?;
        for role in &roles {
            let key = format!("{role}_token_id");
            let id = match model.get(&key) {
                Some(Json::Null) | None => model.get("text_config").and_then(|text| text.get(&key)),
                found => found,
            };
            special.set_json(role, id);
        }
        Ok(special)
    }

    fn read_normalizer(&mut self, normalizer: &Json, depth: usize) {
        match normalizer.get("type").and_then(Json::as_str) {
            Some("Lowercase") => self.lowercase = Some(true),
            Some("StripAccents") => self.strip_accents = Some(true),
            Some("BertNormalizer") => {
                // A null is not written: the key keeps its default.
                self.lowercase = normalizer.get("lowercase").map_or(self.lowercase, Json::as_bool);
                self.strip_accents =
                    normalizer.get("strip_accents").map_or(self.strip_accents, Json::as_bool);
            }
            // serde_json limits the depth to 128; the format itself nests once.
            Some("Sequence") if depth < 8 => {
                for part in normalizer.get("normalizers").and_then(Json::as_array).into_iter().flatten() {
                    self.read_normalizer(part, depth + 1);
                }
            }
            _ => {}
        }
    }

    /// Examines the tokens that the post-processor adds. It may assign roles to tokens: these are set in `config`.
    fn read_post_processor(&mut self, post: &Json, config: &mut Json, roles: &mut Vec<String>) {
        let mut known = ConfigSpecials {
            has_config: truthy(config),
            bos: config.get("bos_token").cloned().unwrap_or_default(),
            cls: config.get("cls_token").cloned().unwrap_or_default(),
            eos: config.get("eos_token").cloned().unwrap_or_default(),
            sep: config.get("sep_token").cloned().unwrap_or_default(),
        };
        if !truthy(&known.bos) && truthy(&known.cls) && known.has_config {
            known.bos = known.cls.clone();
            config["bos_token"] = known.bos.clone();
        }
        if !truthy(&known.eos) && truthy(&known.sep) && known.has_config {
            known.eos = known.sep.clone();
            config["eos_token"] = known.eos.clone();
        }
        if !truthy(post) {
            return;
        }
        let one = std::slice::from_ref(post);
        let processors = post.get("processors").and_then(Json::as_array).map_or(one, Vec::as_slice);
        for processor in processors {
            match processor.get("type").and_then(Json::as_str) {
                Some("ByteLevel") => {
                    self.add_default("bos", false);
                    self.add_default("eos", false);
                }
                Some("RobertaProcessing") => {
                    for role in ["bos", "eos", "sep"] {
                        self.set_add(role, true);
                    }
                    if !truthy(&known.cls) && known.has_config {
                        known.cls =
                            processor.get("cls").map_or_else(|| known.bos.clone(), |cls| cls[0].clone());
                        config["cls_token"] = known.cls.clone();
                    }
                    if !truthy(&known.sep) && known.has_config {
                        known.sep =
                            processor.get("sep").map_or_else(|| known.eos.clone(), |sep| sep[0].clone());
                        config["sep_token"] = known.sep.clone();
                    }
                }
                Some("TemplateProcessing") => self.read_template(processor, &mut known, config, roles),
                _ => {}
            }
        }
    }

    fn read_template(
        &mut self,
        processor: &Json,
        known: &mut ConfigSpecials,
        config: &mut Json,
        roles: &mut Vec<String>,
    ) {
        let special = |piece: Option<&Json>| {
            piece.and_then(|piece| piece.get("SpecialToken")?.get("id")).filter(|id| truthy(id)).cloned()
        };
        let empty = Vec::new();
        let single = processor.get("single").and_then(Json::as_array).unwrap_or(&empty);
        let mut pair = processor.get("pair").and_then(Json::as_array).map_or(&[][..], Vec::as_slice);
        let (mut first, mut last) = (None, None);
        if single.len() > 1 {
            first = special(single.first());
            if let Some(token) = &first {
                if !known.has_config {
                    known.bos = token.clone();
                } else if *token != known.bos && *token != known.cls {
                    if !truthy(&known.bos) {
                        known.bos = token.clone();
                        config["bos_token"] = token.clone();
                    }
                    if !truthy(&known.cls) {
                        known.cls = token.clone();
                        config["cls_token"] = token.clone();
                    }
                }
                self.set_add("bos", *token == known.bos || *token == known.cls);
            }
            last = special(single.last());
            if let Some(token) = &last {
                if !known.has_config {
                    known.eos = token.clone();
                } else if *token != known.eos {
                    // The end token of the configuration moves to the next free role.
                    if let Some(role) = ["eot", "eom"].iter().find(|&&role| !roles.iter().any(|r| r == role))
                    {
                        roles.push((*role).to_owned());
                        config[format!("{role}_token")] = known.eos.clone();
                    }
                    known.eos = token.clone();
                    config["eos_token"] = token.clone();
                }
                self.set_add("eos", *token == known.eos);
            }
        }
        if pair.is_empty() {
            return;
        }
        if first.is_some() && special(pair.first()) == first {
            pair = &pair[1..];
        }
        if last.is_some() && special(pair.last()) == last {
            pair = &pair[..pair.len().saturating_sub(1)];
        }
        let sequence = |piece: Option<&Json>, name: &str| {
            piece.and_then(|piece| piece.get("Sequence")?.get("id")).and_then(Json::as_str) == Some(name)
        };
        if !sequence(pair.first(), "A") || !sequence(pair.last(), "B") || pair.len() < 3 {
            return;
        }
        let between = &pair[1..pair.len() - 1];
        let separates = |token: &Json| *token == known.sep || *token == known.eos;
        let mut add_sep = special(between.first()).is_some_and(|token| separates(&token)) && last.is_none();
        if between.len() == 2 {
            add_sep |= special(between.get(1)).is_some_and(|token| separates(&token));
        }
        self.set_add("sep", add_sep);
        if add_sep && !truthy(&known.sep) && known.has_config {
            config["sep_token"] = known.eos.clone();
        }
    }

    fn read_config(&mut self, config: &Json, hf: Option<&HfJson>, tokens: &TokenList, roles: &[String]) {
        for role in roles {
            if let Some(add) = config.get(format!("add_{role}_token")).and_then(Json::as_bool) {
                self.add_default(role, add);
            }
            let Some(text) = config.get(format!("{role}_token")).and_then(token_text) else { continue };
            let added = hf.map_or(&[][..], |hf| hf.added_tokens.as_slice());
            if let Some(token) = added.iter().find(|token| token.content == text) {
                // The file may declare another id than the token gets.
                let at = usize::try_from(token.id).ok().and_then(|at| tokens.tokens.get(at));
                let used = if at.is_some_and(|own| own == text.as_bytes()) { None } else { tokens.id(text) };
                self.set_json(role, Some(&Json::from(used.unwrap_or(token.id))));
            }
        }
    }

    fn set_json(&mut self, role: &str, id: Option<&Json>) {
        // A list of end tokens, or nothing, is not a single id.
        if let Some(id) = id.and_then(Json::as_u64).filter(|&id| id < self.n_tokens)
            && self.id(role).is_none()
        {
            self.ids.push((role.to_owned(), id));
        }
    }

    /// Sets the id of a role for an architecture, unless it has one.
    pub(crate) fn set(&mut self, role: &str, id: u64, warnings: &mut Vec<TokenizerWarning>) {
        let size = self.n_tokens;
        if id >= size {
            let role = role.to_owned();
            warnings.push(TokenizerWarning::SpecialOutOfRange { role, id, size });
        } else if self.id(role).is_none() {
            self.ids.push((role.to_owned(), id));
        }
    }

    /// Sets the id of a role, whether it has one or not.
    pub(crate) fn force(&mut self, role: &str, id: u64) {
        match self.ids.iter_mut().find(|entry| entry.0 == role) {
            Some(entry) => entry.1 = id,
            None => self.ids.push((role.to_owned(), id)),
        }
    }

    pub(crate) fn id(&self, role: &str) -> Option<u64> {
        self.ids.iter().find(|entry| entry.0 == role).map(|entry| entry.1)
    }

    fn set_add(&mut self, role: &str, add: bool) {
        match self.add.iter_mut().find(|entry| entry.0 == role) {
            Some(entry) => entry.1 = add,
            None => self.add.push((role.to_owned(), add)),
        }
    }

    /// Sets the flag of a role unless a file does.
    pub(crate) fn add_default(&mut self, role: &str, add: bool) {
        if !self.add.iter().any(|entry| entry.0 == role) {
            self.add.push((role.to_owned(), add));
        }
    }

    pub(crate) fn write(&self, out: &mut Metadata) {
        for (role, id) in &self.ids {
            if let Some((_, key)) = ID_KEYS.iter().find(|row| row.0 == role)
                && let Ok(id) = u32::try_from(*id)
            {
                out.set(*key, id);
            }
        }
        for (role, add) in &self.add {
            if let Some((_, key)) = FLAG_KEYS.iter().find(|row| row.0 == role) {
                out.set(*key, *add);
            }
        }
        self.chat.write(out);
        if let Some(lowercase) = self.lowercase {
            out.set("tokenizer.ggml.normalizer.lowercase", lowercase);
        }
        if let Some(strip) = self.strip_accents {
            out.set("tokenizer.ggml.normalizer.strip_accents", strip);
        }
    }
}

/// Writes ids of roles after all other keys; an existing key is replaced in place. Texts that are not tokens are
/// skipped.
pub(super) fn write_last(last: &[(String, SpecialToken)], out: &mut Metadata) {
    for (role, token) in last {
        let Some((_, key)) = ID_KEYS.iter().find(|row| row.0 == role) else { continue };
        let id = match token {
            SpecialToken::Id(id) => Some(*id),
            SpecialToken::Text(text) => id_of(text, out),
        };
        if let Some(id) = id {
            out.set(*key, id);
        }
    }
}

/// Writes rows of a card behind those of the vocabulary. A row that names a token by its text gets the token's id, and is left
/// out if there is no such token.
pub(super) fn extend(rows: &mut Metadata, more: &Metadata) {
    for (key, value) in more.iter() {
        match value.as_str().filter(|_| key.ends_with("_token_id")).map(|text| id_of(text, rows)) {
            None => rows.set(key, value.clone()),
            Some(Some(id)) => rows.set(key, id),
            Some(None) => {}
        }
    }
}

/// Returns the id of a token that is written.
fn id_of(text: &str, rows: &Metadata) -> Option<u32> {
    let Some(Array::String(tokens)) = rows.get("tokenizer.ggml.tokens").and_then(Value::as_array) else {
        return None;
    };
    let at = tokens.iter().position(|token| token == text.as_bytes());
    at.and_then(|at| u32::try_from(at).ok())
}

/// Special tokens of the configuration, as needed to examine the post-processor.
struct ConfigSpecials {
    has_config: bool,
    bos: Json,
    cls: Json,
    eos: Json,
    sep: Json,
}

/// Returns true or false for tokenizer classes that always or never add the begin token, regardless of the file.
pub(super) fn class_adds_bos(config: &Json) -> Option<bool> {
    let class = config.get("tokenizer_class").and_then(Json::as_str).unwrap_or_default();
    let is_own = |stem: &&str| class.strip_prefix(*stem).is_some_and(|rest| rest.starts_with("Tokenizer"));
    let declared = || config.get("add_bos_token").and_then(Json::as_bool).unwrap_or(true);
    ["Llama", "CodeLlama", "Gemma"].iter().any(is_own).then(declared)
}

/// Returns the text of a special token: a plain string, or a member of an object.
pub(super) fn token_text(entry: &Json) -> Option<&str> {
    entry.as_str().or_else(|| entry.get("content")?.as_str())
}

/// Returns Python's truth value of a JSON value: null, false, zero and empty values are false.
fn truthy(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => false,
        Json::Bool(true) => true,
        Json::Number(number) => number.as_f64() != Some(0.0),
        Json::String(text) => !text.is_empty(),
        Json::Array(items) => !items.is_empty(),
        Json::Object(members) => !members.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::emit::TokenType;
    use gguf_core::limits::Limits;

    fn read(files: &[(&str, Json)]) -> SpecialTokens {
        read_with(files, &[])
    }

    /// Reads the files for 100 tokens, of which some have these ids and texts.
    fn read_with(files: &[(&str, Json)], texts: &[(u64, &str)]) -> SpecialTokens {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs_err::write(dir.path().join(name), content.to_string()).unwrap();
        }
        let directory = Directory::new(dir.path(), Limits::default());
        let hf = HfJson::read(&directory).unwrap();
        let mut tokens = TokenList::unused(dir.path(), 100, None).unwrap();
        for (id, text) in texts {
            tokens.set(*id, *text, 0.0, TokenType::Control);
        }
        SpecialTokens::read(&directory, hf.as_ref(), &tokens, None, &mut Vec::new()).unwrap()
    }

    #[test]
    fn the_id_of_a_text_is_the_one_that_it_got() {
        let files = [
            ("tokenizer.json", json!({"added_tokens": [{"id": 30, "content": "<|im_end|>"}], "model": {}})),
            ("tokenizer_config.json", json!({"eos_token": "<|im_end|>"})),
        ];
        for (texts, expected) in
            [(&[(25, "<|im_end|>")][..], 25), (&[(25, "<|im_end|>"), (30, "<|im_end|>")], 30)]
        {
            assert_eq!(read_with(&files, texts).ids, [("eos".to_owned(), expected)]);
        }
    }

    fn template(single: &[&str]) -> Json {
        let single: Vec<Json> = single
            .iter()
            .map(|name| match *name {
                "A" => json!({"Sequence": {"id": "A"}}),
                name => json!({"SpecialToken": {"id": name}}),
            })
            .collect();
        json!({"type": "TemplateProcessing", "single": single, "pair": []})
    }

    #[test]
    fn ids_come_in_order_of_discovery_and_the_first_wins() {
        let special = read(&[
            ("tokenizer.json", json!({"added_tokens": [{"id": 7, "content": "<s>"}], "model": {}})),
            ("tokenizer_config.json", json!({"pad_token": null, "bos_token": {"content": "<s>"}})),
            (
                "config.json",
                json!({"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0, "unk_token_id": 500}),
            ),
        ]);
        assert_eq!(special.ids, [("bos".to_owned(), 7), ("pad".to_owned(), 0)]);
    }

    #[test]
    fn an_end_token_of_the_template_moves_the_configured_one_to_eot() {
        let special = read(&[
            (
                "tokenizer.json",
                json!({"added_tokens": [{"id": 1, "content": "</s>"}, {"id": 2, "content": "<|im_end|>"}],
                       "model": {}, "post_processor": template(&["A", "</s>"])}),
            ),
            ("tokenizer_config.json", json!({"eos_token": "<|im_end|>", "add_bos_token": false})),
        ]);
        assert_eq!(special.ids, [("eos".to_owned(), 1), ("eot".to_owned(), 2)]);
        assert_eq!(special.add, [("eos".to_owned(), true), ("bos".to_owned(), false)]);
    }

    #[test]
    fn flags_of_the_post_processor_win_over_the_configuration() {
        let special = read(&[
            (
                "tokenizer.json",
                json!({"added_tokens": [{"id": 1, "content": "<s>"}], "model": {},
                       "post_processor": {"processors": [{"type": "ByteLevel"}, template(&["<s>", "A"])]}}),
            ),
            ("tokenizer_config.json", json!({"bos_token": "<s>", "add_eos_token": true})),
        ]);
        assert_eq!(special.add, [("bos".to_owned(), true), ("eos".to_owned(), false)]);
    }
}

//! Types that another file has: by the name of a tensor, by its role and relative depth, or by the file's mixture.

use std::collections::{BTreeMap, HashMap};

use crate::class::is_integer;
use crate::metadata::declared_file_type;
use crate::prune::{Pruned, split_at_layer};
use crate::{FileType, Input, ModelFacts, QuantizeOptions, Recipe, TensorClass};
use gguf_core::{GgmlType, TensorMeta};
use gguf_format::{Metadata, Value};

/// Types of single tensors by their names in the output, with the file type that the output declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenTypes {
    /// Type by the name of the tensor.
    pub types: BTreeMap<String, GgmlType>,
    /// Value of `general.file_type`; that of the mixture if `None`.
    pub(crate) file_type_id: Option<u32>,
}

/// Types of an output that are those of a reference file.
#[derive(Clone, Debug)]
pub struct LikeTypes {
    /// Types of single tensors.
    pub given: GivenTypes,
    /// Mixture for tensors without a type of their own.
    pub file_type: FileType,
    /// Number of matrices that have the type of the tensor of the same name.
    pub n_by_name: usize,
    /// Number of matrices that have the type of the tensor of the same role at the same relative depth.
    pub n_by_role: usize,
    /// Names of the matrices that the reference has no tensor for.
    pub others: Vec<String>,
    /// True if the other matrices have the most common type of their class in the reference, because its types match no
    /// mixture.
    pub is_by_class: bool,
    /// Number of layers of the output and of the reference, if they differ.
    pub layers: Option<(u64, u64)>,
}

/// Layers of one stack, such as `blk.`, without the draft heads after them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stack {
    n_layers: u64,
    n_heads: u64,
}

impl Stack {
    /// Counts the layers of every stack; the stack is named by what precedes the number of a layer.
    fn all(metadata: &Metadata, names: &[&str]) -> HashMap<String, Self> {
        let architecture = metadata.get("general.architecture").and_then(Value::as_str).unwrap_or_default();
        let n_heads = metadata.get(&format!("{architecture}.nextn_predict_layers")).and_then(Value::as_u64);
        let mut found: HashMap<String, Self> = HashMap::new();
        for (before, layer, _) in names.iter().filter_map(|name| split_at_layer(name)) {
            let stack = found.entry(before.to_owned()).or_default();
            stack.n_layers = stack.n_layers.max(u64::from(layer) + 1);
        }
        if let Some(stack) = found.get_mut("blk.") {
            stack.n_heads = n_heads.unwrap_or(0).min(stack.n_layers.saturating_sub(1));
            stack.n_layers -= stack.n_heads;
        }
        found
    }
}

/// Tensors of the reference file.
struct Reference<'a> {
    by_name: HashMap<&'a str, GgmlType>,
    /// By what precedes and what follows the number of a layer: layers with their types.
    by_role: HashMap<(&'a str, &'a str), Vec<(u64, GgmlType)>>,
    stacks: HashMap<String, Stack>,
}

impl<'a> Reference<'a> {
    fn of(metadata: &Metadata, tensors: &'a [TensorMeta]) -> Self {
        let tensors = || tensors.iter().filter(|tensor| !is_integer(tensor.ty));
        let names: Vec<&str> = tensors().map(|tensor| tensor.name.as_str()).collect();
        let mut by_role: HashMap<_, Vec<_>> = HashMap::new();
        for tensor in tensors() {
            if let Some((before, layer, after)) = split_at_layer(&tensor.name) {
                by_role.entry((before, after)).or_default().push((u64::from(layer), tensor.ty));
            }
        }
        Self {
            by_name: tensors().map(|tensor| (tensor.name.as_str(), tensor.ty)).collect(),
            by_role,
            stacks: Stack::all(metadata, &names),
        }
    }

    /// Type of the tensor of the same name, unless the stacks have different numbers of layers.
    fn by_name(&self, name: &str, stacks: &HashMap<String, Stack>) -> Option<GgmlType> {
        if let Some((before, _, _)) = split_at_layer(name) {
            let n_layers = |stacks: &HashMap<String, Stack>| stacks.get(before).map(|stack| stack.n_layers);
            if n_layers(stacks) != n_layers(&self.stacks) {
                return None;
            }
        }
        self.by_name.get(name).copied()
    }

    /// Type of the tensor of the same role whose layer is nearest in relative depth; of two equally near ones, the
    /// earlier. Draft heads match draft heads in their order, if there are any.
    fn by_role(&self, name: &str, stacks: &HashMap<String, Stack>) -> Option<GgmlType> {
        let (before, layer, after) = split_at_layer(name)?;
        let own = stacks.get(before)?;
        let other = self.stacks.get(before)?;
        let found = self.by_role.get(&(before, after))?;
        let layer = u64::from(layer);
        let is_head = layer >= own.n_layers;
        let is_alike = |at: &u64| (*at >= other.n_layers) == is_head;
        let any_alike = found.iter().any(|(at, _)| is_alike(at));
        let distance = |at: u64| {
            let (at, layer) = (i128::from(at), i128::from(layer));
            let (own_last, other_last) = (last(own.n_layers), last(other.n_layers));
            if is_head {
                (at - i128::from(other.n_layers) - (layer - i128::from(own.n_layers))).abs()
            } else if own_last == 0 {
                at
            } else {
                (at * own_last - layer * other_last).abs()
            }
        };
        let candidates = found.iter().filter(|(at, _)| !any_alike || is_alike(at));
        candidates.min_by_key(|(at, _)| (distance(*at), *at)).map(|(_, ty)| *ty)
    }
}

fn last(n_layers: u64) -> i128 {
    i128::from(n_layers.saturating_sub(1))
}

impl LikeTypes {
    /// Finds the types that a model gets so that they are those of a reference file with these keys and tensors. Only
    /// names, shapes and types are used; `None` if no matrix of the model has a tensor of its name or role there.
    ///
    /// Options that prune layers apply to the model first.
    pub fn of(
        metadata: &Metadata,
        reference: &[TensorMeta],
        input: &Input<'_>,
        options: &QuantizeOptions,
    ) -> Option<Self> {
        let order = ModelFacts::new(metadata, &[], reference).file_order(reference);
        let sorted: Vec<TensorMeta> = order.into_iter().map(|at| reference[at].clone()).collect();
        let recipe = Recipe::of(metadata, &sorted);
        let file_type_id = declared_file_type(metadata);
        let claimed = file_type_id.and_then(FileType::from_id);
        let matched = recipe.file_type(claimed);
        let guess = || FileType::from_id(FileType::guess(sorted.iter().map(|tensor| tensor.ty)) & MOST_ID);
        let file_type = matched.or(claimed).or_else(guess).unwrap_or(FileType::F16);
        let classes = most_by_class(metadata, &sorted);

        let tensors = input.source.tensors();
        let facts = input.facts(&options.overrides);
        let mut pruned = Pruned::new(&options.prune_layers);
        let renamed = facts.file_order(tensors).into_iter().filter_map(|at| {
            let tensor = tensors.get(at)?;
            Some(TensorMeta { name: pruned.rename(&tensor.name)?, ..tensor.clone() })
        });
        let tensors: Vec<TensorMeta> = renamed.collect();
        let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        let stacks = Stack::all(input.metadata, &names);

        let reference = Reference::of(metadata, &sorted);
        let mut this = Self {
            given: GivenTypes { types: BTreeMap::new(), file_type_id },
            file_type,
            n_by_name: 0,
            n_by_role: 0,
            others: Vec::new(),
            is_by_class: matched.is_none(),
            layers: None,
        };
        for tensor in tensors.iter().filter(|tensor| !is_integer(tensor.ty)) {
            let is_matrix = facts.is_quantized(tensor);
            let by_name = reference.by_name(&tensor.name, &stacks);
            let by_role = || reference.by_role(&tensor.name, &stacks);
            let found = by_name.or_else(by_role);
            match found {
                Some(_) if by_name.is_some() => this.n_by_name += usize::from(is_matrix),
                Some(_) => this.n_by_role += usize::from(is_matrix),
                None if is_matrix => this.others.push(tensor.name.clone()),
                None => {}
            }
            let of_class = || classes.get(&TensorClass::of(&tensor.name)).copied();
            let by_class = || Some(()).filter(|()| is_matrix && matched.is_none()).and_then(|()| of_class());
            if let Some(ty) = found.or_else(by_class) {
                this.given.types.insert(tensor.name.clone(), ty);
            }
        }
        if this.n_by_name + this.n_by_role == 0 {
            return None;
        }
        let n_layers = |stacks: &HashMap<String, Stack>| stacks.get("blk.").map(|stack| stack.n_layers);
        let layers = n_layers(&stacks).zip(n_layers(&reference.stacks));
        this.layers = layers.filter(|(own, other)| own != other);
        Some(this)
    }
}

/// Numbers of file types without the bit of guessed ones.
const MOST_ID: u32 = 1023;

fn most_by_class(metadata: &Metadata, tensors: &[TensorMeta]) -> BTreeMap<TensorClass, GgmlType> {
    let facts = ModelFacts::new(metadata, &[], tensors);
    let mut counts: BTreeMap<(TensorClass, &str), (u128, GgmlType)> = BTreeMap::new();
    for tensor in tensors.iter().filter(|tensor| facts.is_quantized(tensor)) {
        let key = (TensorClass::of(&tensor.name), tensor.ty.name());
        counts.entry(key).or_insert((0, tensor.ty)).0 += u128::from(tensor.shape.n_elems());
    }
    let mut found: BTreeMap<TensorClass, (u128, GgmlType)> = BTreeMap::new();
    for ((class, _), count) in counts {
        let best = found.entry(class).or_insert(count);
        if count.0 > best.0 {
            *best = count;
        }
    }
    found.into_iter().map(|(class, (_, ty))| (class, ty)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_core::{Shape, SourceError, TensorSource};

    struct Tensors(Vec<TensorMeta>);

    impl TensorSource for Tensors {
        fn tensors(&self) -> &[TensorMeta] {
            &self.0
        }

        fn read_rows(&self, _: usize, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
            Ok(())
        }
    }

    fn tensor(name: &str, ty: GgmlType) -> TensorMeta {
        let dims = if name.contains("norm") { vec![256] } else { vec![8, 256] };
        TensorMeta { name: name.to_owned(), shape: Shape::new(dims).unwrap(), ty }
    }

    fn keys(n_heads: u32, file_type: Option<u32>) -> Metadata {
        let mut metadata = Metadata::new();
        metadata.set("general.architecture", "llama");
        if n_heads > 0 {
            metadata.set("llama.nextn_predict_layers", n_heads);
        }
        if let Some(id) = file_type {
            metadata.set("general.file_type", id);
        }
        metadata
    }

    /// Tensors `ffn_up` of layers with these types.
    fn layers(types: &[GgmlType]) -> Vec<TensorMeta> {
        let of = |(at, ty): (usize, &GgmlType)| tensor(&format!("blk.{at}.ffn_up.weight"), *ty);
        types.iter().enumerate().map(of).collect()
    }

    fn like(
        (metadata, reference): (&Metadata, &[TensorMeta]),
        (own, tensors): (&Metadata, Vec<TensorMeta>),
        prune: &[u32],
    ) -> Option<LikeTypes> {
        let source = Tensors(tensors);
        let options = QuantizeOptions {
            prune_layers: prune.iter().copied().collect(),
            ..QuantizeOptions::new(FileType::Q8_0)
        };
        LikeTypes::of(metadata, reference, &Input::new(&source, own), &options)
    }

    fn given(found: &LikeTypes) -> Vec<GgmlType> {
        found.given.types.values().copied().collect()
    }

    use GgmlType::{F16, F32, Q2K, Q3K, Q4K, Q5K, Q6K, Q8_0};

    #[test]
    fn equal_names_have_equal_types() {
        let reference = [layers(&[Q4K, Q6K]), vec![tensor("output_norm.weight", F32)]].concat();
        let own = [layers(&[F16, F16]), vec![tensor("output_norm.weight", F32)]].concat();
        let found = like((&keys(0, Some(15)), &reference), (&keys(0, None), own), &[]).unwrap();
        assert_eq!((found.n_by_name, found.n_by_role, found.layers), (2, 0, None));
        assert_eq!(given(&found), [Q4K, Q6K, F32]);
        assert_eq!(found.given.file_type_id, Some(15));
    }

    #[test]
    fn another_number_of_layers_goes_by_relative_depth() {
        let reference = layers(&[Q6K, Q4K, Q3K, Q5K]);
        let own = layers(&[F16; 7]);
        let found = like((&keys(0, None), &reference), (&keys(0, None), own), &[]).unwrap();
        assert_eq!((found.n_by_name, found.n_by_role, found.layers), (0, 7, Some((7, 4))));
        // Layer 1 of 7 lies between layers 0 and 1 of 4, layer 2 is layer 1.
        assert_eq!(given(&found), [Q6K, Q6K, Q4K, Q4K, Q3K, Q3K, Q5K]);
        let own = layers(&[F16; 2]);
        let found = like((&keys(0, None), &reference), (&keys(0, None), own), &[]).unwrap();
        assert_eq!(given(&found), [Q6K, Q5K]);
        let found = like((&keys(0, None), &reference), (&keys(0, None), layers(&[F16])), &[]).unwrap();
        assert_eq!(given(&found), [Q6K]);
        // Four of five layers are left, under the names that the reference has.
        let found = like((&keys(0, None), &reference), (&keys(0, None), layers(&[F16; 5])), &[1]).unwrap();
        assert_eq!((found.n_by_name, found.layers), (4, None));
    }

    #[test]
    fn draft_heads_are_no_layers() {
        let reference = layers(&[Q6K, Q4K, Q3K, Q8_0]);
        let own = layers(&[F16; 3]);
        let found = like((&keys(1, None), &reference), (&keys(0, None), own), &[]).unwrap();
        assert_eq!((found.n_by_name, given(&found)), (3, vec![Q6K, Q4K, Q3K]));
        let found = like((&keys(1, None), &reference), (&keys(2, None), layers(&[F16; 4])), &[]).unwrap();
        assert_eq!((found.layers, given(&found)), (Some((2, 3)), vec![Q6K, Q3K, Q8_0, Q8_0]));
    }

    #[test]
    fn roles_that_only_some_layers_have_are_those_of_the_nearest() {
        let reference = vec![
            tensor("blk.0.ffn_up.weight", Q6K),
            tensor("blk.1.ffn_up_exps.weight", Q2K),
            tensor("blk.5.ffn_up_exps.weight", Q3K),
        ];
        let own = (0..6).map(|at| tensor(&format!("blk.{at}.ffn_up_exps.weight"), F16)).collect();
        let found = like((&keys(0, None), &reference), (&keys(0, None), own), &[]).unwrap();
        assert_eq!((found.n_by_name, found.n_by_role), (2, 4));
        assert_eq!(given(&found), [Q2K, Q2K, Q2K, Q2K, Q3K, Q3K]);
    }

    #[test]
    fn what_the_reference_lacks_goes_by_its_mixture_or_by_class() {
        let own = || [layers(&[F16; 2]), vec![tensor("blk.0.attn_v.weight", F16)]].concat();
        let found = like((&keys(0, Some(18)), &layers(&[Q6K, Q6K])), (&keys(0, None), own()), &[]).unwrap();
        assert_eq!((found.file_type, found.is_by_class), (FileType::Q6K, false));
        assert_eq!(found.others, ["blk.0.attn_v.weight"]);
        assert!(!found.given.types.contains_key("blk.0.attn_v.weight"));
        // Types that no mixture has.
        let mixed = [layers(&[Q2K, Q8_0]), vec![tensor("enc.blk.0.attn_v.weight", Q5K)]].concat();
        let found = like((&keys(0, Some(15)), &mixed), (&keys(0, None), own()), &[]).unwrap();
        assert_eq!((found.file_type, found.is_by_class), (FileType::Q4KM, true));
        assert_eq!(found.given.types.get("blk.0.attn_v.weight"), Some(&Q5K));
    }

    #[test]
    fn a_file_without_a_common_tensor_says_nothing() {
        let reference = [tensor("v.blk.0.attn_q.weight", Q8_0)];
        assert!(like((&keys(0, None), &reference), (&keys(0, None), layers(&[F16])), &[]).is_none());
        assert!(like((&keys(0, None), &[]), (&keys(0, None), layers(&[F16])), &[]).is_none());
    }
}

//! Choices of one type per tensor from a table of costs: for a number of bytes, for an expected divergence, and one step
//! smaller.

use crate::allocate::costs::TensorCost;
use crate::allocate::greedy::{self, TypeCandidate};
use crate::allocate::survey::{OpenTensor, Survey};
use crate::allocate::{AllocateError, Allocation, ChosenType, SIZE_TOLERANCE, SizeTarget, StandardMix};
use gguf_core::GgmlType;
use gguf_format::FileType;

/// Types of all tensors to choose for.
#[derive(Clone, Debug, PartialEq)]
pub struct TypeSet {
    /// Number of the candidate of each tensor, in an order of the choices' own.
    pub choice: Vec<usize>,
    /// Bytes of the file, header included.
    pub file_bytes: u64,
    /// Expected mean KLD (nats) of the file.
    pub expected_kld: f64,
}

/// Choices of types by fixed costs.
pub struct Choices<'s, 'a> {
    survey: &'s Survey<'a>,
    costs: &'s [TensorCost],
    /// Index of the tensor of each row. Tensors that every token uses come before experts, so that they are preferred
    /// where gains are equal.
    order: Vec<usize>,
    rows: Vec<Vec<TypeCandidate>>,
}

impl<'a> Survey<'a> {
    /// Chooses the types for a size by their costs, which are in the order of [`Survey::tensors`].
    ///
    /// # Errors
    /// A size below that with the smallest types.
    pub fn choose(&self, costs: &[TensorCost], target: SizeTarget) -> Result<Allocation, AllocateError> {
        let target_bytes = target.bytes(self.n_elems());
        let choices = self.choices(costs);
        let set = choices.within_bytes(target_bytes).map_err(|least| self.too_small(least, target))?;
        choices.allocation(&set, target_bytes)
    }

    /// Choices of types by their costs, which are in the order of [`Survey::tensors`].
    pub fn choices<'s>(&'s self, costs: &'s [TensorCost]) -> Choices<'s, 'a> {
        Choices::new(self, costs)
    }
}

impl<'s, 'a> Choices<'s, 'a> {
    fn new(survey: &'s Survey<'a>, costs: &'s [TensorCost]) -> Self {
        let mut order: Vec<usize> = (0..costs.len().min(survey.tensors().len())).collect();
        order.sort_by_key(|&at| survey.tensors()[at].is_of_experts());
        let row = |&at: &usize| survey.candidates(&survey.tensors()[at], &costs[at]);
        let rows = order.iter().map(row).collect();
        Self { survey, costs, order, rows }
    }

    /// Chooses types for a file of at most `most_bytes`, with the least expected divergence.
    ///
    /// # Errors
    /// The bytes of a file with the smallest types, if they are more.
    pub fn within_bytes(&self, most_bytes: u64) -> Result<TypeSet, u64> {
        let fixed = self.survey.fixed_bytes();
        let too_many = |open_bytes: u64| fixed.saturating_add(open_bytes);
        let choice = greedy::choose(&self.rows, most_bytes.saturating_sub(fixed)).map_err(too_many)?;
        let set = self.set(choice);
        if set.file_bytes > most_bytes { Err(set.file_bytes) } else { Ok(set) }
    }

    /// Chooses types for the smallest file of at most this expected divergence; if there is none, those of the least.
    pub fn within_kld(&self, most_kld: f64) -> TypeSet {
        let at = |most_bytes| self.within_bytes(most_bytes).ok();
        let Some(mut best) = at(u64::MAX) else { return self.set(vec![0; self.rows.len()]) };
        let (mut low, mut high) = (self.within_bytes(0).err().unwrap_or(0), best.file_bytes);
        if let Some(least) = at(low).filter(|set| set.expected_kld <= most_kld) {
            return least;
        }
        while low < high {
            let middle = low + (high - low) / 2;
            match at(middle).filter(|set| set.expected_kld <= most_kld) {
                Some(set) => (high, best) = (set.file_bytes, set),
                None => low = middle + 1,
            }
        }
        best
    }

    /// Choices that differ in one tensor, which has a smaller type; first those that save the most bytes for their cost.
    pub fn downgrades(&self, from: &TypeSet) -> Vec<TypeSet> {
        let mut found: Vec<(f64, TypeSet)> = Vec::new();
        for (at, row) in self.rows.iter().enumerate() {
            let Some(now) = row.get(from.choice[at]) else { continue };
            for (to, other) in row.iter().enumerate().filter(|(_, other)| other.n_bytes < now.n_bytes) {
                let mut choice = from.choice.clone();
                choice[at] = to;
                let more = (other.cost - now.cost).max(f64::MIN_POSITIVE);
                found.push(((now.n_bytes - other.n_bytes) as f64 / more, self.set(choice)));
            }
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        found.into_iter().map(|(_, set)| set).collect()
    }

    fn set(&self, choice: Vec<usize>) -> TypeSet {
        let file_bytes = self.survey.fixed_bytes().saturating_add(greedy::total(&self.rows, &choice));
        let costs = self.rows.iter().zip(&choice).filter_map(|(row, &at)| row.get(at));
        let expected_kld = costs.map(|candidate| candidate.cost).sum();
        TypeSet { choice, file_bytes, expected_kld }
    }

    /// Types of a choice, in the order of the output.
    pub fn types(&self, set: &TypeSet) -> Vec<ChosenType> {
        let rows = self.order.iter().zip(self.rows.iter().zip(&set.choice));
        let mut found: Vec<(usize, ChosenType)> = rows
            .filter_map(|(&tensor, (row, &at))| {
                let TypeCandidate { ty, cost, .. } = *row.get(at)?;
                let OpenTensor { name, place, .. } = &self.survey.tensors()[tensor];
                Some((tensor, ChosenType { name: name.clone(), place: *place, ty, cost }))
            })
            .collect();
        found.sort_by_key(|(tensor, _)| *tensor);
        found.into_iter().map(|(_, chosen)| chosen).collect()
    }

    /// Turns a choice into options that plan a run, with the standard mix that is nearest in size.
    ///
    /// # Errors
    /// A tensor name that no rule can be made of.
    pub fn allocation(&self, set: &TypeSet, target_bytes: u64) -> Result<Allocation, AllocateError> {
        let (types, file_bytes) = (self.types(set), set.file_bytes);
        let is_largest = self.rows.iter().zip(&set.choice).all(|(row, &at)| {
            let most = row.iter().map(|candidate| candidate.n_bytes).max();
            row.get(at).map(|candidate| candidate.n_bytes) == most
        });
        let mixes = self.survey.mixes(self.costs);
        let nearest = |mixes: &mut dyn Iterator<Item = &StandardMix>| {
            mixes.min_by_key(|mix| mix.file_bytes.abs_diff(file_bytes)).copied()
        };
        // A few more or fewer keys are no reason to compare with a smaller mix.
        let most = target_bytes as f64 * (1.0 + SIZE_TOLERANCE);
        let fitting = nearest(&mut mixes.iter().filter(|mix| mix.file_bytes as f64 <= most));
        let mix = fitting.or_else(|| nearest(&mut mixes.iter()));
        let only_types: Vec<GgmlType> = types.iter().map(|chosen| chosen.ty).collect();
        let mut by_size: Vec<&StandardMix> = mixes.iter().collect();
        by_size.sort_by_key(|mix| mix.file_bytes.abs_diff(file_bytes));
        let by_size: Vec<FileType> = by_size.into_iter().map(|mix| mix.file_type).collect();
        Ok(Allocation {
            options: self.survey.labelled(&by_size, &only_types)?,
            expected_kld: set.expected_kld,
            types,
            target_bytes,
            file_bytes,
            n_elems: self.survey.n_elems(),
            is_largest,
            n_runs: 0,
            mix,
        })
    }
}

//! Division of the files of a ladder among machines: by the work that they are, without any communication.

use crate::gguf::WorkCost;

pub(super) struct FileWork<'a> {
    pub(super) name: &'a str,
    /// By tensor: index of its content.
    pub(super) variants: &'a [usize],
    /// True if a run of its own writes the file, so that it has nothing in common with others.
    pub(super) is_alone: bool,
    /// Number of times that the file is made until its types are found; 1 if they are known.
    pub(super) n_runs: u64,
}

/// Number of files that are made and measured until one keeps to a divergence: a bisection takes about as many.
pub(super) const PROMISE_RUNS: u64 = 6;

/// Files by machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Division {
    /// Number of the machine of each file, from 0.
    pub(super) machines: Vec<usize>,
    /// Number of the machine with the least work, from 0.
    pub(super) idlest: usize,
}

/// Work that a machine has so far.
struct Load {
    picoseconds: u64,
    /// By tensor and content: true if the machine makes it.
    made: Vec<Vec<bool>>,
}

impl Load {
    /// Additional work of a file, in picoseconds: what the machine makes for another of its files is only written.
    fn added(&self, file: &FileWork<'_>, costs: &[Vec<WorkCost>]) -> u64 {
        let of = |((&variant, costs), made): ((&usize, &Vec<WorkCost>), &Vec<bool>)| {
            let Some(cost) = costs.get(variant) else { return 0 };
            let is_made = made.get(variant) == Some(&true);
            match (file.is_alone, is_made, made.contains(&true)) {
                (false, true, _) => cost.write,
                (false, false, true) => cost.encode.saturating_add(cost.write),
                _ => cost.total(),
            }
        };
        let once = file.variants.iter().zip(costs).zip(&self.made).map(of).fold(0, u64::saturating_add);
        once.saturating_mul(file.n_runs)
    }

    fn add(&mut self, file: &FileWork<'_>, added: u64) {
        self.picoseconds = self.picoseconds.saturating_add(added);
        if !file.is_alone {
            for (&variant, made) in file.variants.iter().zip(&mut self.made) {
                if let Some(made) = made.get_mut(variant) {
                    *made = true;
                }
            }
        }
    }
}

/// Divides files among `count` machines. The largest file comes first, and each goes to the machine that is done first
/// with it. `costs` has the costs of every content of every tensor.
///
/// The division depends on the files and the number of machines, not on the order of the files: all machines find the
/// same.
pub(super) fn divided(files: &[FileWork<'_>], costs: &[Vec<WorkCost>], count: usize) -> Division {
    // More machines than files have nothing to do.
    let n_loads = count.clamp(1, files.len() + 1);
    let empty = || costs.iter().map(|costs| vec![false; costs.len()]).collect();
    let mut loads: Vec<Load> = (0..n_loads).map(|_| Load { picoseconds: 0, made: empty() }).collect();
    let alone = Load { picoseconds: 0, made: empty() };
    let mut order: Vec<(usize, u64)> =
        files.iter().map(|file| alone.added(file, costs)).enumerate().collect();
    order.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| files[a.0].name.cmp(files[b.0].name)));
    let mut machines = vec![0; files.len()];
    for (at, _) in order {
        let ends = loads.iter().map(|load| load.added(&files[at], costs));
        let ends = ends.zip(&loads).map(|(added, load)| (load.picoseconds.saturating_add(added), added));
        let Some((machine, (_, added))) = ends.enumerate().min_by_key(|(number, (end, _))| (*end, *number))
        else {
            continue;
        };
        machines[at] = machine;
        loads[machine].add(&files[at], added);
    }
    let idlest = (0..n_loads).min_by_key(|&number| (loads[number].picoseconds, number)).unwrap_or(0);
    Division { machines, idlest }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(encode: u64) -> WorkCost {
        WorkCost { read: 1, encode, write: 1 }
    }

    /// Ten tensors in four contents.
    fn costs() -> Vec<Vec<WorkCost>> {
        (0..10).map(|_| vec![cost(10), cost(20), cost(90), cost(95)]).collect()
    }

    fn file<'a>(name: &'a str, variants: &'a [usize]) -> FileWork<'a> {
        FileWork { name, variants, is_alone: false, n_runs: 1 }
    }

    #[test]
    fn all_files_are_divided_alike_whatever_their_order() {
        let (a, b, c) = ([0; 10], [1; 10], [2; 10]);
        let mixed = [0, 0, 0, 0, 0, 1, 1, 1, 1, 2];
        let files = [file("A", &a), file("B", &b), file("C", &c), file("M", &mixed), file("N", &mixed)];
        for count in 1..9 {
            let own = divided(&files, &costs(), count);
            assert_eq!(own.machines.len(), files.len());
            assert!(own.machines.iter().all(|&machine| machine < count));
            let reversed: Vec<FileWork<'_>> =
                files.iter().rev().map(|of| file(of.name, of.variants)).collect();
            let mut other = divided(&reversed, &costs(), count);
            other.machines.reverse();
            assert_eq!(own, other, "{count}");
        }
        // The slow type has a machine of its own, and each of five files.
        let two = divided(&files, &costs(), 2).machines;
        assert!(two.iter().enumerate().all(|(at, &machine)| (at == 2) == (machine == two[2])), "{two:?}");
        let mut five = divided(&files, &costs(), 5).machines;
        five.sort_unstable();
        assert_eq!(five, [0, 1, 2, 3, 4]);
        assert_eq!(divided(&files, &costs(), 7).idlest, 5);
        assert_eq!(divided(&[], &[], 3), Division { machines: Vec::new(), idlest: 0 });
    }

    #[test]
    fn what_files_have_in_common_is_made_on_one_machine() {
        let (c, e) = ([2; 10], [3; 10]);
        let like_c = [2, 2, 2, 2, 2, 2, 2, 2, 2, 0];
        let files = [file("C", &c), file("E", &e), file("D", &like_c)];
        assert_eq!(divided(&files, &costs(), 2).machines, [1, 0, 1]);
        // Not if a run of its own makes one of them.
        let alone = FileWork { is_alone: true, ..file("D", &like_c) };
        assert_eq!(divided(&[file("C", &c), file("E", &e), alone], &costs(), 4).machines, [1, 0, 2]);
        // A file whose types are searched for is made several times.
        let b = [1; 10];
        let searched = FileWork { is_alone: true, n_runs: PROMISE_RUNS, ..file("KLD-0.01", &b) };
        let files = [searched, file("C", &c), file("D", &like_c)];
        assert_eq!(divided(&files, &costs(), 2).machines, [0, 1, 1]);
    }
}

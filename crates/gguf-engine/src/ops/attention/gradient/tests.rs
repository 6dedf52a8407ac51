use super::*;
use crate::exec::gradient::differences;
use crate::exec::mask::Mask;
use crate::testkit::noise::Noise;

const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DK: usize = 6;
const DV: usize = 5;

/// Sum of the heads' outputs times `weights`, in f64; `x` holds queries, keys, values and sinks.
fn loss(a: &ScoreParams<'_>, has_sinks: bool, cuts: &[usize], x: &[f64], weights: &[f32]) -> f64 {
    let n = *cuts.last().unwrap();
    let (q, rest) = x.split_at(n * HEADS * DK);
    let (k, rest) = rest.split_at(n * KV_HEADS * DK);
    let (v, sinks) = rest.split_at(n * KV_HEADS * DV);
    let mut sum = 0.0;
    for cut in cuts.windows(2) {
        for (head, query) in (0..HEADS).flat_map(|head| (cut[0]..cut[1]).map(move |query| (head, query))) {
            let (own, kv_head) = (query - cut[0], head / (HEADS / KV_HEADS));
            let keys = cut[0] + a.mask.first_key(own)..cut[0] + a.mask.end_key(own, cut[1] - cut[0]);
            let score = |key: usize| {
                let q = &q[(query * HEADS + head) * DK..][..DK];
                let k = &k[(key * KV_HEADS + kv_head) * DK..][..DK];
                let dot = f64::from(a.scale) * q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>();
                let capped = a.cap.map_or(dot, |cap| f64::from(cap) * (dot / f64::from(cap)).tanh());
                capped
                    - a.alibi.map_or(0.0, |slopes| f64::from(slopes[head]))
                        * (query as f64 - key as f64).abs()
            };
            let sink = if has_sinks { sinks[head].exp() } else { 0.0 };
            let total = keys.clone().map(|key| score(key).exp()).sum::<f64>() + sink;
            for key in keys {
                let p = score(key).exp() / total;
                for at in 0..DV {
                    let weight = f64::from(weights[(query * HEADS + head) * DV + at]);
                    sum += p * v[(key * KV_HEADS + kv_head) * DV + at] * weight;
                }
            }
        }
    }
    sum
}

#[test]
fn gradients_equal_central_differences() {
    let cuts = [0, 7, 9];
    let n = 9;
    let alibi = [0.1, 0.2, 0.3, 0.4];
    for (mask, cap, alibi, has_sinks) in [
        (Mask::Causal, None, None, false),
        (Mask::Window(3), Some(1.5), None, false),
        (Mask::Chunked(4), None, Some(&alibi[..]), true),
        (Mask::Full, Some(2.0), None, true),
    ] {
        let a = ScoreParams {
            n_heads: HEADS,
            n_kv_heads: KV_HEADS,
            dk: DK,
            dv: DV,
            scale: 0.7,
            cap,
            mask,
            sinks: None,
            alibi,
            relative: None,
        };
        let lens = [n * HEADS * DK, n * KV_HEADS * DK, n * KV_HEADS * DV, HEADS];
        let [q, k, v, sinks] = [0, 1, 2, 3].map(|at| Noise::new(at).floats(lens[at as usize]));
        let weights = Noise::new(9).floats(n * HEADS * DV);
        let all: Vec<f64> = [&q[..], &k, &v, &sinks].concat().into_iter().map(f64::from).collect();
        let expected = differences(&all, |x| loss(&a, has_sinks, &cuts, x, &weights));
        let [mut dq, mut dk, mut dv] = [q.clone(), k.clone(), v.clone()];
        let gradient =
            ScoresGradient { a, sinks: has_sinks.then_some(&sinks[..]), level: SimdLevel::detect() };
        let out = ProjectedGradient { q: &mut dq, k: &mut dk, v: &mut dv };
        let workers = Workers::new(2).unwrap();
        let mut d_sinks =
            gradient.run(&workers, &cuts, Projected { q: &q, k: &k, v: &v }, &weights, out).unwrap();
        if !has_sinks {
            d_sinks.fill(0.0);
        }
        for (at, (found, expected)) in [dq, dk, dv, d_sinks].concat().iter().zip(expected).enumerate() {
            assert!((f64::from(*found) - expected).abs() < 2e-6, "{mask:?} {at}: {found}, {expected}");
        }
    }
}

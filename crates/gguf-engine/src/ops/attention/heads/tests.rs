use super::*;
use crate::exec::mask::Mask;
use crate::exec::weights::Matrix;
use crate::testkit::noise::Noise;

const N_HEADS: usize = 4;

const N_KV_HEADS: usize = 2;
const DK: usize = 24;

const DV: usize = 16;

fn attention(mask: Mask, cap: Option<f32>, alibi: Option<Vec<f32>>) -> Attention {
    let matrix =
        Matrix { tensor: 0, first_row: 0, n_rows: 1, n_cols: 1, bias: None, scale: None, expert: None };
    Attention {
        q: matrix.clone(),
        k: matrix.clone(),
        v: matrix.clone(),
        out: matrix,
        n_heads: N_HEADS,
        n_kv_heads: N_KV_HEADS,
        dk: DK,
        dv: DV,
        q_norm: None,
        k_norm: None,
        norm_after_rope: false,
        rope: None,
        rope_2d: false,
        scale: 0.6,
        cap,
        mask,
        clamp: None,
        sinks: None,
        alibi,
        relative: None,
        temperature: None,
        v_norm: None,
        kv: crate::KvSource::Own,
        gate: None,
        sub_norm: None,
        out_scale: None,
        switched: None,
    }
}

/// Random projections of a chunk.
struct ChunkProjections {
    n: usize,
    prefix: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

impl ChunkProjections {
    fn new(n: usize, prefix: usize) -> Self {
        let [q, k, v] = [(N_HEADS * DK, 1), (N_KV_HEADS * DK, 2), (N_KV_HEADS * DV, 3)]
            .map(|(width, seed)| Noise::new(seed).floats(n * width));
        Self { n, prefix, q, k, v }
    }

    fn queries(&self, mask: Mask, kv_head: usize, wanted: &Range<usize>) -> Queries<'_> {
        let n_keys = mask.end_key(wanted.end - 1, self.n).max(self.prefix);
        Queries {
            mask,
            n_chunk_keys: self.n,
            kv_head,
            first: wanted.start,
            n: wanted.len(),
            prefix: self.prefix,
            rows: &self.q[wanted.start * N_HEADS * DK..],
            kv: HeadKv::Rows(
                rows_of_head(&self.k, 0, n_keys, kv_head, N_KV_HEADS, DK),
                rows_of_head(&self.v, 0, n_keys, kv_head, N_KV_HEADS, DV),
            ),
        }
    }

    /// Returns the results of [`AttentionHeads::whole`] and [`AttentionHeads::online`], `[head, query, DV]` each.
    fn both_ways(&self, heads: &AttentionHeads<'_>, wanted: &Range<usize>) -> [Vec<f32>; 2] {
        let len = N_HEADS * wanted.len() * DV;
        // Both must overwrite the previous contents.
        let [mut whole, mut online] = [vec![7.0; len], vec![-7.0; len]];
        for (results, is_whole) in [(&mut whole, true), (&mut online, false)] {
            for kv_head in 0..N_KV_HEADS {
                let tiles: Vec<_> = results.chunks_mut(wanted.len() * DV).collect();
                let tiles = std::sync::Mutex::new(tiles.into_iter().map(Some).collect::<Vec<_>>());
                let out = |head: usize| {
                    let rows = tiles.lock().unwrap()[head].take().unwrap();
                    MatrixTile::whole(rows, wanted.len(), DV)
                };
                let queries = self.queries(heads.a.mask, kv_head, wanted);
                let mut buffers = WorkerBuffers::default();
                if is_whole {
                    heads.whole(&queries, out, &mut buffers);
                } else {
                    heads.online(&queries, out, &mut buffers);
                    let bytes = 4 * (buffers.rows.len() + buffers.tile.len());
                    assert!(bytes <= buffer_bytes(&heads.a, self.n), "{bytes} bytes");
                }
            }
        }
        [whole, online]
    }

    /// Returns the result of the definition, in f64.
    fn by_formula(&self, heads: &AttentionHeads<'_>, head: usize, position: usize) -> Vec<f64> {
        let a = heads.a;
        let kv_head = head / (N_HEADS / N_KV_HEADS);
        let end = a.mask.end_key(position, self.n).max(self.prefix);
        let visible = a.mask.first_key(position)..end;
        let q = &self.q[(position * N_HEADS + head) * DK..][..DK];
        let score = |key: usize| {
            let k = &self.k[(key * N_KV_HEADS + kv_head) * DK..][..DK];
            let dot: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
            let scaled = f64::from(a.scale) * dot;
            let capped = a.cap.map_or(scaled, |cap| f64::from(cap) * (scaled / f64::from(cap)).tanh());
            let slope = a.alibi.as_ref().map_or(0.0, |slopes| f64::from(slopes[head]));
            capped - slope * (position as f64 - key as f64).abs()
        };
        let sink = heads.sinks.as_ref().map_or(0.0, |sinks| f64::from(sinks[head]).exp());
        let total = visible.clone().map(|key| score(key).exp()).sum::<f64>() + sink;
        let mut out = vec![0.0; DV];
        for key in visible {
            let v = &self.v[(key * N_KV_HEADS + kv_head) * DV..][..DV];
            let weight = score(key).exp() / total;
            out.iter_mut().zip(v).for_each(|(y, v)| *y += weight * f64::from(*v));
        }
        out
    }
}

#[test]
fn a_running_softmax_over_tiles_of_keys_equals_the_whole_one_and_the_formula() {
    let n = 2 * TILE_KEYS + 331;
    let slopes = || Some(vec![0.5, 0.01, 0.002, 0.0]);
    let sinks = || Some(vec![3.0, -1.0, 60.0, 0.5]);
    let cases = [
        ("causal", attention(Mask::Causal, None, None), None, 0),
        ("window", attention(Mask::Window(700), None, None), None, 0),
        ("narrow window", attention(Mask::Window(3), None, None), None, 0),
        ("blocks", attention(Mask::Chunked(900), None, None), None, 0),
        ("cap", attention(Mask::Causal, Some(0.7), None), None, 0),
        ("slopes", attention(Mask::Causal, None, slopes()), None, 0),
        ("sinks", attention(Mask::Window(1500), None, None), sinks(), 0),
        ("prefix", attention(Mask::Causal, None, None), None, 1300),
        ("prefix of one tile", attention(Mask::Causal, None, None), None, TILE_KEYS),
        ("both sides", attention(Mask::Full, None, slopes()), None, 0),
        ("a window to both sides", attention(Mask::Symmetric(701), None, slopes()), sinks(), 0),
        ("all", attention(Mask::Window(1111), Some(2.0), slopes()), sinks(), 1217),
    ];
    let clock = Clock::default();
    for (name, a, sinks, prefix) in cases {
        let heads = AttentionHeads {
            a: a.scores(),
            level: SimdLevel::detect(),
            clock: &clock,
            sinks,
            relative: None,
        };
        let chunk = ChunkProjections::new(n, prefix);
        // The first queries, some across the border of two tiles, and the last.
        for wanted in [0..PART_QUERIES, TILE_KEYS - 130..TILE_KEYS + 70, n - 97..n] {
            let [whole, online] = chunk.both_ways(&heads, &wanted);
            for (at, (x, y)) in whole.iter().zip(&online).enumerate() {
                assert!((x - y).abs() < 2e-6, "{name}, {wanted:?}: {x} and {y} at {at}");
            }
            for head in 0..N_HEADS {
                for row in [0, wanted.len() / 2, wanted.len() - 1] {
                    let expected = chunk.by_formula(&heads, head, wanted.start + row);
                    let found = &online[(head * wanted.len() + row) * DV..][..DV];
                    for (x, y) in expected.iter().zip(found) {
                        assert!((x - f64::from(*y)).abs() < 2e-6, "{name}, {wanted:?}, {row}: {x} and {y}");
                    }
                }
            }
        }
    }
}

#[test]
fn buffers_stop_growing_with_the_chunk() {
    let a = attention(Mask::Causal, None, None);
    assert!(buffer_bytes(&a.scores(), 512) < buffer_bytes(&a.scores(), WHOLE_KEYS));
    assert_eq!(buffer_bytes(&a.scores(), 4 * WHOLE_KEYS), buffer_bytes(&a.scores(), 400 * WHOLE_KEYS));
}

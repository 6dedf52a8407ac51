//! Table of the expected cost of each type for each tensor.

use gguf_core::GgmlType;

/// Least cost of a measured tensor as a share of the estimated one.
const LEAST: f64 = 0.01;

/// Costs of types for one tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TensorCost {
    /// Name in the output.
    pub name: String,
    /// Relative error of the tensor's output by type: power of the error over power of the output.
    pub errors: Vec<(GgmlType, f64)>,
    /// Increase of the mean KLD (nats) per relative error, estimated without running the model.
    pub sensitivity: f64,
    /// Increase of the mean KLD (nats) with only this tensor quantized, for each measured type.
    pub measured: Vec<(GgmlType, f64)>,
}

impl TensorCost {
    /// Relative error of a type, if it is known.
    pub fn error(&self, ty: GgmlType) -> Option<f64> {
        self.errors.iter().find(|row| row.0 == ty).map(|row| row.1)
    }

    /// Multiplies the cost of each type by a factor, to model a rounding that is better than the measured one for some
    /// types.
    pub fn scale(&mut self, factor: impl Fn(GgmlType) -> f64) {
        for (ty, value) in self.errors.iter_mut().chain(&mut self.measured) {
            *value *= factor(*ty);
        }
    }

    /// Expected increase of the mean KLD (nats) with this type.
    ///
    /// KLD is proportional to the relative error of a tensor's output: from 2 to 6 bits, on every tensor of the bundled
    /// model, the factor changes by a tenth. So one measured type gives the cost of all others. If several are
    /// measured, the one with the nearest error is used. Without any, the cost is the sensitivity times the error.
    pub fn of(&self, ty: GgmlType) -> Option<f64> {
        let error = self.error(ty)?;
        let distance = |other: f64| if other > error { other / error } else { error / other };
        let known = self.measured.iter().filter_map(|&(ty, kld)| Some((kld, self.error(ty)?)));
        let known = known.filter(|&(kld, other)| other > 0.0 && kld.is_finite());
        let nearest = known.min_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
        let cost = match nearest {
            // A tensor without effect on the text has a divergence of noise, of either sign. It may have one elsewhere.
            Some((kld, other)) => kld.max(LEAST * self.sensitivity * other) * (error / other),
            None => self.sensitivity * error,
        };
        Some(if cost.is_finite() { cost } else { 0.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_reaches_every_type_from_a_measured_one() {
        let mut cost = TensorCost {
            name: "x".to_owned(),
            errors: vec![(GgmlType::Q4K, 0.01), (GgmlType::Q8_0, 0.0001)],
            sensitivity: 0.5,
            measured: Vec::new(),
        };
        let is_near = |cost: &TensorCost, of: [f64; 2]| {
            let near = |(ty, expected): (GgmlType, f64)| (cost.of(ty).unwrap() - expected).abs() < 1e-12;
            [GgmlType::Q4K, GgmlType::Q8_0].into_iter().zip(of).all(near)
        };
        let mut estimated = cost.clone();
        let factor = |ty| if ty == GgmlType::Q4K { 0.25 } else { 1.0 };
        estimated.scale(factor);
        assert!(is_near(&estimated, [0.00125, 0.00005]));
        for measured in [(GgmlType::Q4K, 0.02), (GgmlType::Q8_0, 0.0002)] {
            cost.measured = vec![measured];
            let mut scaled = cost.clone();
            scaled.scale(factor);
            assert!(is_near(&scaled, [0.005, 0.0002]), "{measured:?}");
        }
    }

    #[test]
    fn measured_types_give_the_others() {
        let mut cost = TensorCost {
            name: "x".to_owned(),
            errors: vec![(GgmlType::Q2K, 0.08), (GgmlType::Q4K, 0.004), (GgmlType::Q6K, 0.00025)],
            sensitivity: 0.5,
            measured: Vec::new(),
        };
        assert_eq!(cost.of(GgmlType::Q4K), Some(0.002));
        assert_eq!(cost.of(GgmlType::Q5K), None);
        cost.measured = vec![(GgmlType::Q4K, 0.001)];
        assert_eq!(cost.of(GgmlType::Q4K), Some(0.001));
        assert!((cost.of(GgmlType::Q2K).unwrap() - 0.02).abs() < 1e-12);
        cost.measured.push((GgmlType::Q2K, 0.1));
        assert_eq!((cost.of(GgmlType::Q2K), cost.of(GgmlType::Q4K)), (Some(0.1), Some(0.001)));
        // Negative noise is not a gain, and larger types stay better.
        cost.measured = vec![(GgmlType::Q4K, -1e-9)];
        assert!((cost.of(GgmlType::Q2K).unwrap() - 0.0004).abs() < 1e-12);
        // A type without error gives no information.
        cost.errors.push((GgmlType::F32, 0.0));
        cost.measured = vec![(GgmlType::F32, 0.0)];
        assert_eq!(cost.of(GgmlType::Q4K), Some(0.002));
        assert_eq!(cost.of(GgmlType::F32), Some(0.0));
    }
}

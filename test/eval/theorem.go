package main

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/psidecar/psidecar/cmd/psjob/model"
	"github.com/psidecar/psidecar/proxy/codec/rows"
)

// cutter is Algorithm 2 in float64, row by row, by sorting: slow, plain, and what the proxies'
// code is compared with. Each row has its own threshold, or all rows the same.
type cutter struct {
	sparsity float64
	tau      float64   // of all rows; 0: each has its own
	taus     []float64 // of the rows that were seen
	sum      []float64 // of what the rows became
	// which activations of the last Forward went
	mask []bool
}

// Forward implements [model.Splitter].
func (c *cutter) Forward(activations []float32, width int) {
	if c.sum == nil {
		c.sum = make([]float64, width)
	}
	c.mask = slices.Grow(c.mask[:0], len(activations))[:len(activations)]
	magnitudes := make([]float64, width)
	for from := 0; from < len(activations); from += width {
		row := activations[from : from+width]
		for i, v := range row {
			magnitudes[i] = math.Abs(float64(v))
		}
		slices.Sort(magnitudes)
		own := magnitudes[width-rows.Kept(width, c.sparsity)]
		c.taus = append(c.taus, own)
		tau := own
		if c.tau > 0 {
			tau = c.tau
		}
		for i, v := range row {
			c.mask[from+i] = math.Abs(float64(v)) >= tau
			if !c.mask[from+i] {
				row[i] = 0
			}
			c.sum[i] += float64(row[i])
		}
	}
}

// Backward implements [model.Splitter].
func (c *cutter) Backward(gradients []float32, _ int) {
	for i, in := range c.mask {
		if !in {
			gradients[i] = 0
		}
	}
}

// theorem checks theorem 1 of DCT on a picture net: the mean of all samples' gradients where
// each row of activations has its own threshold, against that where all have the mean of these,
// beside how far the theorem's assumption (1) is from holding; at the beginning and after some
// training.
func theorem(ctx context.Context, e *evaluation) error {
	const hidden, batch = 64, 32
	s := pictureNet(e, 0, hidden, hidden)
	m, err := s.load(ctx, model.Share{Index: 0, Of: 20}, false, 1)
	if err != nil {
		return err
	}
	all := whole(m)
	if e.quick {
		all = all[:500]
	}
	group := m.Groups(nil)[0]
	params := make([]float32, group.Values()) // differences from initial values
	t := table{title: fmt.Sprintf("DCT Theorem 1, MLP 784-%d-%d-10, %d pictures, split behind the first ReLU: means over all samples, each row by its own threshold against all by the mean threshold", hidden, hidden, len(all)),
		head: []string{"steps", "sparsity", "mean threshold", "its deviation between rows", "assumption (1) is off by", "mean gradient is off by", "cosine of the two"}}
	done := 0
	for _, steps := range []int{0, 100, 1000} {
		put(m, [2]map[int]model.Splitter{})
		for ; done < steps; done++ {
			// Batches in a fixed order: the check needs some training, not a good one.
			from := done * batch % (len(all) - batch)
			for i, g := range gradientOf(m, params, all[from:from+batch]) {
				params[i] -= 0.1 * g / batch
			}
		}
		for _, eta := range []float64{0.5, 0.75, 0.9} {
			own := &cutter{sparsity: eta}
			put(m, [2]map[int]model.Splitter{{1: own}})
			of := gradientOf(m, params, all)
			mean, deviation := moments(own.taus)
			one := &cutter{sparsity: eta, tau: mean}
			put(m, [2]map[int]model.Splitter{{1: one}})
			with := gradientOf(m, params, all)
			t.addRow(fmt.Sprint(steps), fmt.Sprintf("%g%%", 100*eta), fmt.Sprintf("%.3f", mean), fmt.Sprintf("%.3f", deviation),
				fmt.Sprintf("%.1f%%", 100*off(own.sum, one.sum)), fmt.Sprintf("%.1f%%", 100*off(of, with)), fmt.Sprintf("%.4f", cosine(of, with)))
		}
	}
	return t.write(e.out)
}

// gradientOf returns the sum of the samples' gradients.
func gradientOf(m model.Model, params []float32, batch []int32) []float32 {
	grads := [][]float32{make([]float32, len(params))}
	m.Groups(batch)
	m.Gradient(batch, [][]float32{slices.Clone(params)}, grads, &model.Tally{})
	return grads[0]
}

// moments returns mean and standard deviation of values, taken as all there are.
func moments(v []float64) (mean, deviation float64) {
	for _, x := range v {
		mean += x / float64(len(v))
	}
	for _, x := range v {
		deviation += (x - mean) * (x - mean) / float64(len(v))
	}
	return mean, math.Sqrt(deviation)
}

// off returns the distance of a from b, relative to the norm of b.
func off[F float32 | float64](a, b []F) float64 {
	d, n := 0.0, 0.0
	for i := range a {
		x := float64(a[i]) - float64(b[i])
		d += x * x
		n += float64(b[i]) * float64(b[i])
	}
	return math.Sqrt(d / n)
}

// cosine returns the cosine of the angle between a and b.
func cosine(a, b []float32) float64 {
	ab, aa, bb := 0.0, 0.0, 0.0
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab, aa, bb = ab+x*y, aa+x*x, bb+y*y
	}
	return ab / math.Sqrt(aa*bb)
}

package main

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSketcher: a sketch keeps rows in the mean, with noise, and treats equal rows alike.
func TestSketcher(t *testing.T) {
	const width, rows = 64, 200
	k := &sketcher{left: 0.5, rng: rand.New(rand.NewPCG(1, 1))}
	x := make([]float32, rows*width)
	for i := range x {
		x[i] = 1
	}
	k.Forward(x, width)
	mean := 0.0
	for _, v := range x[:width] {
		mean += float64(v) / width
	}
	if math.Abs(mean-1) > 0.7 || x[0] == 1 || !slices.Equal(x[:width], x[width:2*width]) {
		t.Errorf("a mean of %v, rows begin with %v and %v", mean, x[0], x[width])
	}
}

// TestGradientCutter: the largest gradients go, and what waited of the others goes with the
// next.
func TestGradientCutter(t *testing.T) {
	c := &gradientCutter{sparsity: 0.75}
	for _, step := range []struct{ in, want []float32 }{
		{[]float32{1, -2, 3, 4}, []float32{0, 0, 3, 4}},
		{[]float32{1, -2, 0, 0}, []float32{2, -4, 0, 0}},
	} {
		got := slices.Clone(step.in)
		c.Backward(got, 2)
		if !slices.Equal(got, step.want) {
			t.Errorf("of %v go %v, want %v", step.in, got, step.want)
		}
	}
}

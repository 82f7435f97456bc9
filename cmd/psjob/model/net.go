package model

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// A net is a chain of fully connected layers with ReLU between them. Its
// parameters are one flat list: per layer the weights, one row of inputs for
// each output, then the biases.
type net struct {
	sizes   []int // of the input, of each layer's output
	lastRaw bool  // no ReLU after the last layer
	outputs [][]float32
	deltas  [][]float32
}

func newNet(lastRaw bool, sizes ...int) *net {
	return &net{sizes: sizes, lastRaw: lastRaw,
		outputs: make([][]float32, len(sizes)), deltas: make([][]float32, len(sizes))}
}

// values returns the number of parameters.
func (n *net) values() int {
	total := 0
	for l := 1; l < len(n.sizes); l++ {
		total += n.sizes[l] * (n.sizes[l-1] + 1)
	}
	return total
}

// initial returns starting values: weights uniform with variance 2/inputs (He
// et al. 2015), biases zero.
func (n *net) initial(seed uint64) []float32 {
	w := make([]float32, 0, n.values())
	for l := 1; l < len(n.sizes); l++ {
		in, out := n.sizes[l-1], n.sizes[l]
		scale := float32(math.Sqrt(6 / float64(in)))
		if n.lastRaw && l == len(n.sizes)-1 {
			scale /= 4
		}
		for i := range in * out {
			w = append(w, scale*unitRandom(seed+uint64(l), uint64(i)))
		}
		w = append(w, make([]float32, out)...)
	}
	return w
}

// forward computes the outputs of a batch of rows. The result belongs to the
// net, as does input until backward is done.
func (n *net) forward(w, input []float32) []float32 {
	n.outputs[0] = input
	rows := len(input) / n.sizes[0]
	for l := 1; l < len(n.sizes); l++ {
		in, out := n.sizes[l-1], n.sizes[l]
		weights, biases := w[:in*out], w[in*out:in*out+out]
		w = w[in*out+out:]
		y := resize(&n.outputs[l], rows*out)
		relu := !n.lastRaw || l < len(n.sizes)-1
		for r := range rows {
			x := n.outputs[l-1][r*in : (r+1)*in]
			for o := range out {
				v := biases[o] + dot(weights[o*in:(o+1)*in], x)
				if relu && v < 0 {
					v = 0
				}
				y[r*out+o] = v
			}
		}
	}
	return n.outputs[len(n.sizes)-1]
}

// backward adds the parameters' gradient to grad, given the loss's derivative
// by each output, which it changes. It returns the derivative by the input.
func (n *net) backward(w, delta, grad []float32) []float32 {
	end := n.values()
	rows := len(delta) / n.sizes[len(n.sizes)-1]
	for l := len(n.sizes) - 1; l > 0; l-- {
		in, out := n.sizes[l-1], n.sizes[l]
		from := end - out*(in+1)
		weights := w[from : from+in*out]
		gw, gb := grad[from:from+in*out], grad[from+in*out:end]
		end = from
		before := resize(&n.deltas[l-1], rows*in)
		clear(before)
		relu := !n.lastRaw || l < len(n.sizes)-1
		for r := range rows {
			x, dx := n.outputs[l-1][r*in:(r+1)*in], before[r*in:(r+1)*in]
			for o := range out {
				d := delta[r*out+o]
				if d == 0 || (relu && n.outputs[l][r*out+o] == 0) {
					continue
				}
				gb[o] += d
				axpy(d, x, gw[o*in:(o+1)*in])
				axpy(d, weights[o*in:(o+1)*in], dx)
			}
		}
		delta = before
	}
	return delta
}

func resize(list *[]float32, n int) []float32 {
	*list = slices.Grow((*list)[:0], n)[:n]
	return *list
}

func dot(a, b []float32) float32 {
	b = b[:len(a)]
	var s0, s1, s2, s3 float32
	i := 0
	for ; i+4 <= len(a); i += 4 {
		s0 += a[i] * b[i]
		s1 += a[i+1] * b[i+1]
		s2 += a[i+2] * b[i+2]
		s3 += a[i+3] * b[i+3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return s0 + s1 + s2 + s3
}

// axpy adds d times x to y.
func axpy(d float32, x, y []float32) {
	y = y[:len(x)]
	for i, v := range x {
		y[i] += d * v
	}
}

// A tensor is a flat list of values that travels as blocks: each block is one
// key with a long value.
type tensor struct {
	initial []float32
	group   Group
	blocks  []block // in the order of their keys
	values  []float32
	grad    []float32
}

type block struct {
	key      uint64
	from, to int // in the flat list
}

// newTensor cuts values into blocks of at most size and gives block i the key
// of id first+i. It returns the next free id.
func newTensor(initial []float32, first uint64, size int, key func(id uint64) (uint64, error)) (*tensor, uint64, error) {
	t := &tensor{initial: initial, values: make([]float32, len(initial)), grad: make([]float32, len(initial))}
	for from := 0; from < len(initial); from += size {
		k, err := key(first)
		if err != nil {
			return nil, 0, fmt.Errorf("key of a dense tensor: %w", err)
		}
		t.blocks = append(t.blocks, block{k, from, min(from+size, len(initial))})
		first++
	}
	slices.SortFunc(t.blocks, func(a, b block) int { return cmp.Compare(a.key, b.key) })
	for i, b := range t.blocks {
		if i > 0 && b.key == t.blocks[i-1].key {
			return nil, 0, fmt.Errorf("two blocks of a dense tensor have the key %d", b.key)
		}
		t.group.Keys = append(t.group.Keys, b.key)
		t.group.Lens = append(t.group.Lens, int32(b.to-b.from))
	}
	return t, first, nil
}

// load sets values from pulled ones, which come in the order of the keys.
func (t *tensor) load(pulled []float32) {
	at := 0
	for _, b := range t.blocks {
		for i := b.from; i < b.to; i++ {
			t.values[i] = t.initial[i] + pulled[at]
			at++
		}
	}
}

// store writes grad in the order of the keys and clears it.
func (t *tensor) store(pushed []float32) {
	at := 0
	for _, b := range t.blocks {
		at += copy(pushed[at:], t.grad[b.from:b.to])
	}
	clear(t.grad)
}

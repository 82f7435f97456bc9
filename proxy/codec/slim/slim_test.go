package slim

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/proxy/codec/element"
	"github.com/psidecar/psidecar/proxy/codec/sparse"
	"github.com/psidecar/psidecar/test/require"
)

var allKinds = []element.Kind{element.Float32, element.Float64, element.Float16, element.BFloat16}

func layer(kind element.Kind, n int, number func() float64) []byte {
	b := make([]byte, n*kind.Size())
	for i := range n {
		kind.Put(b, i, number())
	}
	return b
}

// coreOf is CoreSelection as printed, by sorting; stable, so that of equals the
// first are taken.
func coreOf(kind element.Kind, values []byte, size int) []int {
	order := make([]int, len(values)/kind.Size())
	for i := range order {
		order[i] = i
	}
	magnitude := func(i int) float64 { return math.Abs(kind.At(values, i)) }
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := magnitude(i), magnitude(j)
		switch {
		case a > b:
			return -1
		case a < b:
			return 1
		}
		return 0
	})
	core := slices.Clone(order[:size])
	slices.Sort(core)
	return core
}

func positions(m sparse.Mask) []int {
	var p []int
	for i := range len(m) * 64 {
		if m.Has(i) {
			p = append(p, i)
		}
	}
	return p
}

// Every round sends the core that the paper's pseudo-code chose at its last
// selection, and as many others as it should, and the receiver gets them.
func TestEqualsThePaper(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom(allKinds).Draw(t, "kind")
		n := rapid.IntRange(1, 300).Draw(t, "n")
		alpha := rapid.Float64Range(0.01, 1).Draw(t, "alpha")
		c := Config{
			Alpha: alpha, Epsilon: alpha * rapid.SampledFrom([]float64{0, 0.3, 0.5, 1}).Draw(t, "epsilon"),
			Rounds: rapid.IntRange(1, 4).Draw(t, "rounds"), Seed: rapid.Uint64().Draw(t, "seed"),
		}
		s := require.Value(NewSender(kind, n, c))(t)
		r := NewReceiver(n)
		rng := rand.New(rand.NewPCG(c.Seed, 7))
		var core []int
		for round := range 6 {
			values := layer(kind, n, func() float64 { return math.Round(rng.NormFloat64()*4) / 4 })
			coreSize, explorerSize := c.sizes(n)
			if round%c.Rounds == 0 {
				core = coreOf(kind, values, coreSize)
			}
			wire := require.Value(s.Append(nil, values))(t)
			v, rest, err := r.Decode(append(wire, "after"...))
			if err != nil || string(rest) != "after" {
				t.Fatalf("round %d: %v, %q follows", round, err, rest)
			}
			if got := positions(r.core); !slices.Equal(got, core) {
				t.Fatalf("round %d: core %v, want %v", round, got, core)
			}
			if v.Kind != kind || v.N != n || v.Count() != coreSize+explorerSize {
				t.Fatalf("round %d: %d of %d numbers of %v, want %d+%d of %d", round, v.Count(), v.N, v.Kind, coreSize, explorerSize, n)
			}
			before := layer(kind, n, func() float64 { return 77 })
			merged := slices.Clone(before)
			v.Merge(merged)
			for i := range n {
				want := before
				if v.Mask.Has(i) {
					want = values
				}
				if size := kind.Size(); !bytes.Equal(merged[i*size:(i+1)*size], want[i*size:(i+1)*size]) {
					t.Fatalf("round %d: number %d is %g", round, i, kind.At(merged, i))
				}
			}
		}
	})
}

// Every position outside of the core is explored equally often.
func TestExplorerIsFair(t *testing.T) {
	const n, rounds = 40, 20_000
	for _, epsilon := range []float64{0.1, 0.6} {
		s := require.Value(NewSender(element.Float32, n, Config{Alpha: epsilon + 0.2, Epsilon: epsilon, Rounds: rounds, Seed: 3}))(t)
		i := 0.0
		values := layer(element.Float32, n, func() float64 { i++; return i })
		counts := make([]int, n)
		for range rounds {
			if _, _, err := s.AppendHeader(nil, values); err != nil {
				t.Fatal(err)
			}
			for _, p := range positions(s.explorer.mask) {
				counts[p]++
			}
		}
		p := epsilon * n / (0.8 * n)
		for at, got := range counts {
			want, deviation := rounds*p, math.Sqrt(rounds*p*(1-p))
			if at >= n*4/5 {
				want, deviation = 0, 0
			}
			if math.Abs(float64(got)-want) > 5*deviation {
				t.Errorf("epsilon %g: position %d explored %d times, want %.0f", epsilon, at, got, want)
			}
		}
	}
}

// The paper's form takes (alpha + epsilon) n values; positions in fewer bits
// than a value, none for the explorer, and exponents in few bits make it less
// than alpha n.
func TestSizes(t *testing.T) {
	const n = 100_000
	rng := rand.New(rand.NewPCG(1, 1))
	c := Config{Alpha: 0.3, Epsilon: 0.15, Rounds: 20, Seed: 1}
	s := require.Value(NewSender(element.Float32, n, c))(t)
	total := 0
	for range 20 {
		wire := require.Value(s.Append(nil, layer(element.Float32, n, rng.NormFloat64)))(t)
		total += len(wire)
	}
	share := float64(total) / (20 * 4 * n)
	t.Logf("%.1f%% of the bytes", 100*share)
	if share > 0.26 {
		t.Errorf("%.1f%% of the bytes, the paper's form takes 45%%", 100*share)
	}
}

func TestNotFiniteIsInTheCore(t *testing.T) {
	s := require.Value(NewSender(element.Float32, 8, Config{Alpha: 0.25, Rounds: 1}))(t)
	numbers := []float64{1, 2, math.NaN(), 3, math.Inf(-1), 4, 5, 6}
	i := -1
	_, v, err := s.AppendHeader(nil, layer(element.Float32, 8, func() float64 { i++; return numbers[i] }))
	if err != nil || !slices.Equal(positions(v.Mask), []int{2, 4}) {
		t.Errorf("sent %v, %v", positions(v.Mask), err)
	}
}

func TestRenew(t *testing.T) {
	s := require.Value(NewSender(element.Float32, 10, Config{Alpha: 0.1, Rounds: 100}))(t)
	r := NewReceiver(10)
	for round := range 4 {
		if round == 2 {
			s.left = 0
		}
		i := 0
		wire := require.Value(s.Append(nil, layer(element.Float32, 10, func() float64 { i++; return float64(i * (1 - round)) })))(t)
		if _, _, err := r.Decode(wire); err != nil {
			t.Fatal(err)
		}
		if got := wire[0]&hasCore != 0; got != (round == 0 || round == 2) {
			t.Errorf("round %d has a core: %v", round, got)
		}
	}
}

func TestRefused(t *testing.T) {
	for _, c := range []Config{{}, {Alpha: 1.1, Rounds: 1}, {Alpha: 0.5, Epsilon: 0.6, Rounds: 1}, {Alpha: 0.5, Epsilon: -1, Rounds: 1}, {Alpha: 0.5}, {Alpha: math.NaN(), Rounds: 1}} {
		if _, err := NewSender(element.Float32, 10, c); err == nil {
			t.Errorf("%+v was taken", c)
		}
	}
	s := require.Value(NewSender(element.Float32, 10, Config{Alpha: 0.5, Epsilon: 0.2, Rounds: 5}))(t)
	if _, err := s.Append(nil, make([]byte, 36)); !errors.Is(err, ErrLength) {
		t.Errorf("9 numbers for a layer of 10: %v", err)
	}
	first := require.Value(s.Append(nil, make([]byte, 40)))(t)
	second := require.Value(s.Append(nil, make([]byte, 40)))(t)
	full := slices.Clone(first) // its explorer has 2, its core 3
	full[4] = 8
	noBegin, noCore := slices.Clone(first), slices.Clone(first)
	noBegin[0], noCore[0] = hasCore, begins
	for name, wires := range map[string][][]byte{
		"more than the layer has": {full}, "a first round without what begins it": {noBegin}, "a first round without a core": {noCore},
		"the second round first": {second}, "a round twice": {first, first}, "a long layer": {nil, first},
		"a round without its end": {first[:len(first)-1]},
	} {
		r := NewReceiver(10)
		if wires[0] == nil {
			r, wires = NewReceiver(9), wires[1:]
		}
		var err error
		for _, wire := range wires {
			_, _, err = r.Decode(wire)
		}
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNothingIsAllocated(t *testing.T) {
	s, err := NewSender(element.Float32, 5000, Config{Alpha: 0.3, Epsilon: 0.15, Rounds: 3})
	require.NoError(t, err)
	r := NewReceiver(5000)
	values := layer(element.Float32, 5000, rand.New(rand.NewPCG(2, 2)).NormFloat64)
	var wire []byte
	if allocs := testing.AllocsPerRun(10, func() {
		if wire, err = s.Append(wire[:0], values); err != nil {
			t.Fatal(err)
		}
		if _, _, err := r.Decode(wire); err != nil {
			t.Fatal(err)
		}
	}); allocs != 0 {
		t.Errorf("%g allocations", allocs)
	}
}

func FuzzDecode(f *testing.F) {
	for _, kind := range allKinds {
		s, err := NewSender(kind, 100, Config{Alpha: 0.3, Epsilon: 0.15, Rounds: 2})
		require.NoError(f, err)
		var rounds [2][]byte
		rng := rand.New(rand.NewPCG(3, 3))
		for i := range rounds {
			if rounds[i], err = s.Append(nil, layer(kind, 100, rng.NormFloat64)); err != nil {
				f.Fatal(err)
			}
		}
		f.Add(rounds[0], rounds[1])
	}
	const most = 1000
	f.Fuzz(func(t *testing.T, first, second []byte) {
		r := NewReceiver(most)
		for _, wire := range [][]byte{first, second} {
			v, _, err := r.Decode(wire)
			if err != nil {
				if !errors.Is(err, ErrCorrupt) {
					t.Fatal(err)
				}
				return
			}
			if v.N > most || v.Mask.Count() != v.Count() {
				t.Fatalf("%d positions, %d values of %d", v.Mask.Count(), v.Count(), v.N)
			}
			v.Expand(make([]byte, v.N*v.Kind.Size()))
		}
	})
}

// Append appends a round: what is sent of values, the bytes of all numbers of the layer.
func (s *Sender) Append(dst, values []byte) ([]byte, error) {
	dst, selected, err := s.AppendHeader(dst, values)
	if err != nil {
		return nil, err
	}
	return sparse.AppendValues(dst, s.kind, selected.Values, true), nil
}

// Decode reads what [Sender.Append] wrote and returns what follows it. The vector belongs
// to the receiver and is valid until the next call.
func (r *Receiver) Decode(src []byte) (v *sparse.Vector, rest []byte, err error) {
	v, count, src, err := r.DecodeHeader(src)
	if err != nil {
		return nil, nil, err
	}
	v.Values, rest, err = sparse.DecodeValues(v.Values[:0], v.Kind, count, src)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return v, rest, nil
}

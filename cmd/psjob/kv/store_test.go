package kv

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/psidecar/psidecar/test/require"
)

func newStore(t testing.TB, s StoreSettings) *Store {
	t.Helper()
	st := require.Value(NewStore(s))(t)
	return st
}

// The store must do what a map of slices does, whatever the lengths.
func TestAddLikeAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		width := rapid.IntRange(1, 3).Draw(t, "width")
		uniform := rapid.Bool().Draw(t, "uniform")
		st := require.Value(NewStore(StoreSettings{Rule: "add", ValueLength: width}))(t)
		want := make(map[uint64][]float32)
		length := func(key uint64) int {
			if uniform {
				return width
			}
			return int(key % 4)
		}
		for range rapid.IntRange(1, 12).Draw(t, "requests") {
			keys := rapid.SliceOfNDistinct(rapid.Uint64Range(0, 30), 1, 10, rapid.ID).Draw(t, "keys")
			slices.Sort(keys)
			var vals, expect []float32
			var lens []int32
			push := rapid.Bool().Draw(t, "push")
			for _, key := range keys {
				if want[key] == nil {
					want[key] = make([]float32, length(key))
				}
				if !uniform {
					lens = append(lens, int32(length(key)))
				}
				for i := range want[key] {
					v := float32(rapid.IntRange(-9, 9).Draw(t, "value"))
					if push {
						vals = append(vals, v)
						want[key][i] += v
					}
				}
				expect = append(expect, want[key]...)
			}
			if push {
				require.NoError(t, st.Push(0, keys, vals, lens))
			}
			got := require.Value(st.Pull(0, keys, lens, nil))(t)
			if !slices.Equal(got, expect) {
				t.Fatalf("pulled %v, want %v", got, expect)
			}
		}
	})
}

func TestRules(t *testing.T) {
	for _, tc := range []struct {
		settings StoreSettings
		pushes   []float32
		want     float64
	}{
		{StoreSettings{Rule: "add"}, []float32{1, 2, -4}, -1},
		{StoreSettings{Rule: "assign"}, []float32{5, 2}, 7},
		{StoreSettings{Rule: "sgd", LearningRate: 0.5}, []float32{1, -3}, 1},
		{StoreSettings{Rule: "sgd", LearningRate: 0.5, L2: 1}, []float32{-2, 0}, 0.5},
		{StoreSettings{Rule: "adagrad", LearningRate: 1}, []float32{3, 4}, -3.0/4 - 4.0/6},
		// z = 2, n = 4: w = -(2-1)/((1+2)/1+0.5)
		{StoreSettings{Rule: "ftrl", LearningRate: 1, L1: 1, L2: 0.5}, []float32{2}, -1 / 3.5},
		{StoreSettings{Rule: "ftrl", LearningRate: 1, L1: 1}, []float32{0.5}, 0},
	} {
		for _, synchronous := range []bool{false, tc.settings.TakesGradients()} {
			tc.settings.Synchronous = synchronous
			st := newStore(t, tc.settings)
			for step, v := range tc.pushes {
				require.NoError(t, st.Push(int32(step), []uint64{7}, []float32{v}, nil))
			}
			got := require.Value(st.Pull(int32(len(tc.pushes)), []uint64{7}, nil, nil))(t)
			if math.Abs(float64(got[0])-tc.want) > 1e-6 {
				t.Errorf("%+v: pushes %v give %v, want %v", tc.settings, tc.pushes, got[0], tc.want)
			}
		}
	}
}

// In a synchronous store the order in which workers' pushes of a step arrive
// leaves no trace, and a pull of the step itself does not see them.
func TestSynchronousOrder(t *testing.T) {
	const workers, steps = 5, 4
	keys := []uint64{1, 2, 3}
	gradient := func(worker, step int) []float32 {
		r := rand.New(rand.NewPCG(uint64(worker), uint64(step)))
		return []float32{r.Float32() - 0.5, r.Float32(), float32(r.NormFloat64())}
	}
	run := func(seed uint64) []float32 {
		r := rand.New(rand.NewPCG(seed, 0))
		st := newStore(t, StoreSettings{Rule: "ftrl", Synchronous: true})
		for step := range steps {
			before, _ := st.Pull(int32(step), keys, nil, nil)
			for _, w := range r.Perm(workers) {
				require.NoError(t, st.Push(int32(step), keys, gradient(w, step), nil))
				if now, _ := st.Pull(int32(step), keys, nil, nil); !slices.Equal(now, before) {
					t.Fatalf("step %d: a pull sees the pushes of its own step", step)
				}
			}
		}
		out, _ := st.Pull(steps, keys, nil, nil)
		return out
	}
	first := run(0)
	for seed := range uint64(10) {
		if got := run(seed + 1); !slices.Equal(got, first) {
			t.Fatalf("order %d gives %v, not %v", seed, got, first)
		}
	}
}

func TestErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		settings StoreSettings
		do       func(*Store) error
		want     string
	}{
		"values do not divide": {StoreSettings{Rule: "add"}, func(s *Store) error {
			return s.Push(0, []uint64{1, 2}, []float32{1, 2, 3}, nil)
		}, "3 values do not divide by 2 keys"},
		"lengths and values": {StoreSettings{Rule: "add"}, func(s *Store) error {
			return s.Push(0, []uint64{1, 2}, []float32{1, 2, 3}, []int32{1, 1})
		}, "lengths sum to 2, but got 3 values"},
		"negative length": {StoreSettings{Rule: "add"}, func(s *Store) error {
			return s.Push(0, []uint64{1, 2}, []float32{1, 2, 3}, []int32{-1, 4})
		}, "length -1"},
		"length changes": {StoreSettings{Rule: "add"}, func(s *Store) error {
			_ = s.Push(0, []uint64{1, 2}, []float32{1, 2, 3}, []int32{1, 2})
			return s.Push(0, []uint64{1, 2}, []float32{1, 2}, nil)
		}, "key 2 has 2 values, the request says 1"},
		"not a number": {StoreSettings{Rule: "sgd", Synchronous: true}, func(s *Store) error {
			return s.Push(3, []uint64{4}, []float32{float32(math.NaN())}, nil)
		}, "key 4: gradient NaN at step 3"},
		"late": {StoreSettings{Rule: "sgd", Synchronous: true}, func(s *Store) error {
			_ = s.Push(3, []uint64{4}, []float32{1}, nil)
			return s.Push(2, []uint64{4}, []float32{1}, nil)
		}, "belongs to step 2, but step 3 has begun"},
	} {
		if err := tc.do(newStore(t, tc.settings)); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want %q in it", name, err, tc.want)
		}
	}
	for _, s := range []StoreSettings{
		{}, {Rule: "add", Synchronous: true}, {Rule: "sgd", LearningRate: -1},
		{Rule: "sgd", LearningRate: math.NaN()}, {Rule: "ftrl", L1: -1}, {Rule: "add", ValueLength: -1},
	} {
		if err := s.Check(); err == nil {
			t.Errorf("%+v: no error", s)
		}
	}
}

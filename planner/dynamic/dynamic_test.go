package dynamic

import (
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/splitmix"
	"github.com/psidecar/psidecar/test/require"
)

func TestNewRefuses(t *testing.T) {
	for want, o := range map[string]Options{
		"no strategy":    {Machines: 2},
		"0 machines":     {},
		"1 link speeds ": {Machines: 2, Speed: []float64{1}},
	} {
		if _, err := New("best", o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
	for _, name := range Names() {
		if s, err := New(name, Options{Machines: 2}); err != nil || s.Name() != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBaselines(t *testing.T) {
	it := &Items{Owner: []int32{0, 1, 2, 0}, Home: []int32{0, 0, 2, 1}, Size: []float32{1, 1, 1, 1}}
	moves, err := home{}.Plan(it, nil)
	if err != nil || !slices.Equal(moves, []Move{{1, 0}, {3, 1}}) {
		t.Errorf("home moves %v, %v", moves, err)
	}
	r := &random{machines: 3, seed: 1}
	require.Value(r.Plan(it, nil))(t)
	if moves, err := r.Plan(it, nil); err != nil || len(moves) != 0 {
		t.Errorf("random moves %v again, %v", moves, err)
	}
	count := make([]int, 8)
	for i := range 8000 {
		count[splitmix.Next(7+uint64(i)*splitmix.Golden)%8]++
	}
	if slices.Min(count) < 800 || slices.Max(count) > 1200 {
		t.Errorf("8000 items fall to 8 machines as %v", count)
	}
	if (reactive{}).Access(it, 1, 1, 1, 2) || !(reactive{}).Access(it, 1, 2, 1, 2) {
		t.Error("reactive moves an item to its owner, or not to another machine")
	}
}

func TestLoads(t *testing.T) {
	it := &Items{Owner: []int32{0, 1}}
	got := Loads(it, []Use{{0, 0, 100}, {0, 1, 10}, {1, 0, 5}, {1, 2, 1}}, 3)
	if want := []float64{15, 16, 1}; !slices.Equal(got, want) {
		t.Errorf("loads %v, want %v", got, want)
	}
}

// Two machines with items of their own and one in common: each gets its own.
func TestMGPGivesMachinesTheirOwnItems(t *testing.T) {
	it := &Items{Owner: []int32{1, 1, 1, 0, 0, 0, 0}, Home: make([]int32, 7), Size: make([]float32, 7)}
	e := &Epoch{Batches: []Batch{
		{Machine: 0, Pulled: []int32{0, 1, 2, 6}}, {Machine: 1, Pulled: []int32{3, 4, 5, 6}},
		{Machine: 0, Pulled: []int32{0, 1, 6}}, {Machine: 1, Pulled: []int32{3, 5, 6}},
	}}
	m := NewMGP(Options{Machines: 2})
	moves := require.Value(m.Plan(it, e))(t)
	for _, move := range moves {
		it.Owner[move.Item] = move.To
	}
	if !slices.Equal(it.Owner[:6], []int32{0, 0, 0, 1, 1, 1}) {
		t.Errorf("owners are %v", it.Owner)
	}
	if moves, err := m.Plan(it, e); err != nil || len(moves) != 0 {
		t.Errorf("with nothing new it moves %v, %v", moves, err)
	}
	if moves, err := m.Plan(it, &Epoch{Batches: []Batch{{0, []int32{3}, nil}, {0, []int32{4}, nil}}}); err != nil || len(moves) != 0 {
		t.Errorf("of a machine that is silent it knows nothing, but moves %v, %v", moves, err)
	}
}

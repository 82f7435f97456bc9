package best

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
)

// A mortalKeeper keeps states in memory and ends the run, as a signal would, at
// one of the times that it is asked whether to save; it saves each so often.
type mortalKeeper struct {
	state      []byte
	every      int
	asked, die int
	end        context.CancelFunc
}

func (k *mortalKeeper) Load() ([]byte, error) { return k.state, nil }

func (k *mortalKeeper) Due() bool {
	if k.asked++; k.asked == k.die {
		k.end()
		return false // SIGKILL comes before anything is written
	}
	return k.asked%k.every == 0
}

func (k *mortalKeeper) Save(state []byte) error {
	k.state = bytes.Clone(state)
	return nil
}

// keptRun is Partition with a keeper, less work, and no other algorithms.
func keptRun(ctx context.Context, g *graph.Graph, o partition.Options, work int64, members int) (*partition.Assignment, error) {
	return keepGoing(ctx, g, o, work, members, func(k *keeping) (*partition.Assignment, error) {
		return divideFrom(ctx, g, o, work, members, nil, k)
	})
}

// runKilled runs again and again, each time ended a random number of sweeps
// later, until a run comes to its end; it returns how many did not.
func runKilled(t *testing.T, g *graph.Graph, o partition.Options, k *mortalKeeper, work int64, random *rand.Rand) (*partition.Assignment, int) {
	t.Helper()
	o.Keeper = k
	for killed := 0; ; killed++ {
		ctx, cancel := context.WithCancel(t.Context())
		k.end, k.asked, k.die = cancel, 0, 2+random.IntN(60)
		if killed > 30 {
			k.die = -1
		}
		a, err := keptRun(ctx, g, o, work, 1+random.IntN(2))
		cancel()
		if err == nil {
			return a, killed
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
}

// TestKilledAtRandom ends runs of every kind at random sweeps: in the end they
// have found what a run finds that nobody ends.
func TestKilledAtRandom(t *testing.T) {
	flat, err := graph.Random{Samples: 2000, Params: 60_000, Degree: 10, Exponent: 1, Topics: 8, TopicShare: 0.7, Seed: 4}.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	clustered, err := graph.Random{Samples: 3000, Params: 1000, Degree: 20, Exponent: 1, Topics: 24, TopicShare: 0.9, Seed: 4}.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	from := &partition.Assignment{Samples: slices.Repeat([]int32{-1}, clustered.Samples()), Params: slices.Repeat([]int32{-1}, clustered.Params())}
	for s := range 2800 {
		from.Samples[s] = int32(s % 4)
	}
	for name, tc := range map[string]struct {
		g    *graph.Graph
		o    partition.Options
		work int64
	}{
		"one level":      {flat, partition.Options{K: 4, Seed: 9}, 10_000_000},
		"several levels": {clustered, partition.Options{K: 4, Seed: 9}, 20_000_000},
		"from earlier":   {clustered, partition.Options{K: 4, Seed: 9, From: from, MoveAtMost: 0.3}, 60_000_000},
	} {
		t.Run(name, func(t *testing.T) {
			want := must(t, tc.g, tc.o, tc.work)
			random := rand.New(rand.NewPCG(1, uint64(len(name))))
			killed := 0
			for every := 1; every <= 7; every += 3 {
				got, times := runKilled(t, tc.g, tc.o, &mortalKeeper{every: every}, tc.work, random)
				killed += times
				if !slices.Equal(got.Samples, want.Samples) || !slices.Equal(got.Params, want.Params) {
					t.Errorf("a run that saves every %d sweeps and was ended %d times finds another assignment", every, times)
				}
			}
			if killed == 0 {
				t.Error("no run was ended: it tests nothing")
			}
		})
	}
}

// TestMoreRoundsAreNoWorse goes on from where a run ended, and is ended there too.
func TestMoreRoundsAreNoWorse(t *testing.T) {
	g := text(t, 2000)
	o := partition.Options{K: 4, Seed: 2}
	k := &mortalKeeper{every: 2}
	random := rand.New(rand.NewPCG(3, 3))
	var last []float64
	first := 0.0
	for round := range 4 {
		a, _ := runKilled(t, g, o, k, 4_000_000, random)
		if err := partition.Check(g, a, o); err != nil {
			t.Fatal(err)
		}
		now := partition.Loads(g, a, o)
		if round == 0 {
			first = slices.Max(now)
		} else if compareLoads(now, last) > 0 {
			t.Errorf("round %d: the busiest machine moves %v, before %v", round, slices.Max(now), slices.Max(last))
		}
		last = now
	}
	t.Logf("the busiest machine moves %.0f after one round, %.0f after four", first, slices.Max(last))
	if slices.Max(last) >= first {
		t.Error("three rounds more have brought nothing")
	}
}

func TestStateOfAnotherRun(t *testing.T) {
	g := text(t, 500)
	o := partition.Options{K: 4, Seed: 2}
	k := &mortalKeeper{every: 1}
	o.Keeper = k
	if _, err := keptRun(t.Context(), g, o, 1_000_000, 1); err != nil {
		t.Fatal(err)
	}
	whole := k.state
	reseeded, fewer := o, o
	reseeded.Seed++
	fewer.K = 3
	heavy, err := g.WithWeights(nil, slices.Repeat([]uint32{2}, g.Samples()))
	if err != nil {
		t.Fatal(err)
	}
	var base saved
	if err := gob.NewDecoder(bytes.NewReader(whole)).Decode(&base); err != nil {
		t.Fatal(err)
	}
	base.Base[3] = 4
	var wrong bytes.Buffer
	if err := gob.NewEncoder(&wrong).Encode(&base); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name  string
		g     *graph.Graph
		o     partition.Options
		state []byte
		want  string
	}{
		{"another k", g, fewer, whole, "among 4 machines, not 3"},
		{"another seed", g, reseeded, whole, "another seed"},
		{"more data", text(t, 600), o, whole, "of data with 500 samples"},
		{"other weights", heavy, o, whole, "of other data with as many"},
		{"a part", g, o, whole[:len(whole)/2], "cannot be read"},
		{"nothing of ours", g, o, []byte("rubbish"), "cannot be read"},
		{"a machine that does not exist", g, o, wrong.Bytes(), "out of range"},
	} {
		k.state = tc.state
		if _, err := keptRun(t.Context(), tc.g, tc.o, 1_000_000, 1); err == nil || !strings.Contains(err.Error(), tc.want) || !errors.Is(err, partition.ErrOtherState) {
			t.Errorf("%s: got %v, want %q", tc.name, err, tc.want)
		}
	}
}

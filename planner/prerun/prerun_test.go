package prerun

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/test/graphs"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// writeData writes libsvm text to a new file and returns its path.
func writeData(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "data.libsvm")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// twoTopics has rows 0, 2 on features 1, 2, 3 and rows 1, 3 on 7, 8, 9.
const twoTopics = "+1 1:1 2:.5 3:1\n-1 7:1 8:2 9:1\n# in between\n+1 1:3 2:1 3:1\n-1 7:1 8:1 9:0.25\n"

func graphOf(t *testing.T, in Input) *graph.Graph {
	t.Helper()
	g := require.Value(in.Graph(t.Context()))(t)
	return g
}

func TestJudge(t *testing.T) {
	g := graphOf(t, Input{Path: writeData(t, twoTopics)})
	a := &partition.Assignment{Samples: []int32{0, 1, 0, 1}, Params: []int32{0, 0, 1, 1, 1, 1}}
	r := Judge(g, a, partition.Options{K: 2, Theta: 4, Speed: []float64{1, 2}}, Baseline{Max: 5, Total: 6})
	// Worker 0 uses feature 3 on server 1, and that is all.
	if r.Traffic.Max != 1 || r.Traffic.Total != 1 || !slices.Equal(r.Traffic.PerMachine, []int64{1, 1}) {
		t.Errorf("traffic %+v", r.Traffic)
	}
	if r.Bound != 1 || *r.ImprovementPercent != 400 || !slices.Equal(r.DataPerMachine, []int64{2, 2}) {
		t.Errorf("bound %g, improvement %g, data %v", r.Bound, *r.ImprovementPercent, r.DataPerMachine)
	}
	if !slices.Equal(r.UsedPerMachine, []int64{3, 3}) || !slices.Equal(r.LoadPerMachine, []float64{1, 0.5}) {
		t.Errorf("used %v, load %v", r.UsedPerMachine, r.LoadPerMachine)
	}
	a.Params[2] = 0
	if r := Judge(g, a, partition.Options{K: 2}, Baseline{Max: 5}); r.ImprovementPercent != nil || !math.IsInf(r.Improvement(), 1) {
		t.Errorf("nothing moves: improvement %v", r.ImprovementPercent)
	}
	if r := Judge(g, a, partition.Options{K: 2}, Baseline{}); r.Improvement() != 0 {
		t.Errorf("nothing ever moved: improvement %v", r.Improvement())
	}
}

func TestRandomBaselineIsTheMeanOfFiveSeeds(t *testing.T) {
	g := require.Value(graphs.Random{Samples: 200, Params: 300, Degree: 6, Seed: 1}.Build(t.Context()))(t)
	o := partition.Options{K: 4, Theta: 1, Seed: 99}
	b := require.Value(RandomBaseline(t.Context(), g, o))(t)
	var sum, total int64
	for seed := uint64(1); seed <= 5; seed++ {
		a := require.Value(partition.Random(t.Context(), g, partition.Options{K: 4, Seed: seed}))(t)
		m := partition.Measure(g, a, 4)
		sum, total = sum+m.Max, total+m.Total
	}
	if math.Abs(b.Max-float64(sum)/5) > 1e-9 || math.Abs(b.Total-float64(total)/5) > 1e-9 {
		t.Errorf("got %+v, want %g and %g", b, float64(sum)/5, float64(total)/5)
	}
}

func TestRunRefusesAWrongAnswer(t *testing.T) {
	g := graphOf(t, Input{Path: writeData(t, twoTopics)})
	lame := Algorithm{Name: "lame", Partition: func(_ context.Context, g *graph.Graph, _ partition.Options) (*partition.Assignment, error) {
		return &partition.Assignment{Samples: make([]int32, g.Samples()), Params: make([]int32, g.Params())}, nil
	}}
	if _, _, err := Run(t.Context(), g, lame, partition.Options{K: 2}); err == nil || !strings.Contains(err.Error(), "partitioning with lame failed: machine 0 holds") {
		t.Errorf("got %v", err)
	}
}

func TestOutput(t *testing.T) {
	in := Input{Path: writeData(t, twoTopics)}
	g := graphOf(t, in)
	a := &partition.Assignment{Samples: []int32{0, 1, 0, 1}, Params: []int32{0, 0, 1, 1, 1, 1}}
	keys := require.Value(dataset.ParseKeyMap("spread"))(t)
	// The directory's name is no pattern, whatever it looks like.
	out := Output{Dir: filepath.Join(t.TempDir(), "new", "[dir] *?"), K: 2, Algorithm: "best", KeyMap: keys, Servers: []int{1, 0}}
	for range 2 { // a second time over the first
		require.NoError(t, out.Write(t.Context(), in, g, a))
	}
	for name, want := range map[string]string{
		"shard-00000.libsvm": "+1 1:1 2:.5 3:1\n+1 1:3 2:1 3:1\n",
		"shard-00001.libsvm": "-1 7:1 8:2 9:1\n-1 7:1 8:1 9:0.25\n",
		"assignment.txt":     "0\n1\n0\n1\n0\n0\n1\n1\n1\n1\n",
	} {
		got, err := os.ReadFile(filepath.Join(out.Dir, name))
		if err != nil || string(got) != want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
		}
	}
	p := require.Value(plan.ReadPlacementFile(filepath.Join(out.Dir, "placement.json")))(t)
	if p.K != 2 || p.Epoch != 0 || p.Algorithm != "best" || !slices.Equal(p.Server, []int{1, 0}) || p.Len() != 6 {
		t.Errorf("placement %+v", p)
	}
	if machine, ok := p.Owner(dataset.Spread(3)); !ok || machine != 1 {
		t.Errorf("feature 3: machine %d, %v", machine, ok)
	}

	out.K, out.Servers = 1, nil
	all := &partition.Assignment{Samples: make([]int32, 4), Params: make([]int32, 6)}
	if err := out.Write(t.Context(), in, g, all); err == nil || !strings.Contains(err.Error(), "shard-00001.libsvm belongs to a partition") {
		t.Errorf("old shards: got %v", err)
	}
}

// TestTryFileLeavesWhatThereIs leaves what there is, and nothing where there was nothing.
func TestTryFileLeavesWhatThereIs(t *testing.T) {
	dir := t.TempDir()
	kept, absent := filepath.Join(dir, "kept"), filepath.Join(dir, "absent")
	require.NoError(t, os.WriteFile(kept, []byte("as it was"), 0o600))
	for path, ok := range map[string]bool{kept: true, absent: true, os.DevNull: true, dir: false, filepath.Join(kept, "x"): false} {
		if err := TryFile(path); (err == nil) != ok {
			t.Errorf("%s: %v", path, err)
		}
	}
	if text, err := os.ReadFile(kept); err != nil || string(text) != "as it was" {
		t.Errorf("the file now holds %q, %v", text, err)
	}
	if _, err := os.Stat(absent); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a trial left a file: %v", err)
	}
}

func TestOutputOfChangedData(t *testing.T) {
	in := Input{Path: writeData(t, twoTopics)}
	g := graphOf(t, in)
	a := &partition.Assignment{Samples: make([]int32, 4), Params: make([]int32, 6)}
	for name, text := range map[string]string{"shorter": "1 1:1\n", "longer": twoTopics + twoTopics} {
		require.NoError(t, os.WriteFile(in.Path, []byte(text), 0o600))
		out := Output{Dir: t.TempDir(), K: 1}
		if err := out.Write(t.Context(), in, g, a); err != errChanged {
			t.Errorf("%s: got %v, want errChanged", name, err)
		}
	}
}

// Where writing over an earlier partition fails, no placement says that its shards are
// still there.
func TestFailedOutputLeavesNoPlacement(t *testing.T) {
	in := Input{Path: writeData(t, twoTopics)}
	g := graphOf(t, in)
	a := &partition.Assignment{Samples: make([]int32, 4), Params: make([]int32, 6)}
	bad := Input{Path: writeData(t, "1 1:1\n1 1:x\n")}
	out := Output{Dir: t.TempDir(), K: 1}
	require.NoError(t, out.Write(t.Context(), in, g, a))
	if err := out.Write(t.Context(), bad, g, a); err == nil {
		t.Error("a malformed line was written")
	}
	if _, err := os.Stat(out.placementPath()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the placement of the earlier partition: %v", err)
	}
}

func TestHashedInput(t *testing.T) {
	in := Input{Path: writeData(t, twoTopics), Hash: &dataset.HashOptions{Bins: 16, Seed: 1}}
	g := graphOf(t, in)
	if g.Samples() != 4 || g.Edges() != 4*16 {
		t.Fatalf("%d samples, %d edges, want 4 and 64", g.Samples(), g.Edges())
	}
	if !slices.Equal(g.ParamsOf(0), g.ParamsOf(2)) {
		t.Error("rows of the same features hash to different ones")
	}
	a := &partition.Assignment{Samples: []int32{0, 1, 0, 1}, Params: make([]int32, g.Params())}
	out := Output{Dir: t.TempDir(), K: 2}
	require.NoError(t, out.Write(t.Context(), in, g, a))
	shard := require.Value(dataset.Load(t.Context(), filepath.Join(out.Dir, ShardName(0)), dataset.Options{}))(t)
	ids, _ := shard.Features(1)
	for i, p := range g.ParamsOf(2) {
		if ids[i] != g.Feature(int(p)) {
			t.Fatalf("shard 0, row 1: ids %v, the graph has %d at %d", ids, g.Feature(int(p)), i)
		}
	}
	if shard.Len() != 2 || shard.Label[0] != 1 {
		t.Errorf("shard 0 has %d rows, the first label %g", shard.Len(), shard.Label[0])
	}
}

func TestRules(t *testing.T) {
	g := graphOf(t, Input{Path: writeData(t, twoTopics)})
	rules, err := ReadRules(strings.NewReader("# sizes\nfeature 2 bytes=256\nfeature 5 bytes=2 # of nobody\nsample 4 weight=3\n"), "rules")
	require.NoError(t, err)
	weighted, unused, err := rules.Apply(g)
	require.NoError(t, err)
	if unused != 1 {
		t.Errorf("%d unused rules, want 1: no sample uses feature 5", unused)
	}
	if weighted.ParamWeight(1) != 256 || weighted.ParamWeight(0) != 1 || weighted.SampleWeight(3) != 3 || weighted.SamplesWeight() != 6 {
		t.Error("weights differ from the rules")
	}
	for _, tc := range []struct{ text, want string }{
		{"feature 1\n", "rules, line 1: want \"feature ID"},
		{"\nthing 1 bytes=3\n", "rules, line 2: want \"feature ID"},
		{"feature x bytes=3\n", `feature "x"`},
		{"sample 0 weight=3\n", `sample "0"`},
		{"feature 1 bytes=0\n", "bytes=0: want a whole number"},
		{"feature 1 weight=3\n", `"weight=3": a feature may have`},
		{"sample 1 bytes=3\n", `"bytes=3": a feature may have`},
		{"feature 1 bytes=3\nfeature 1 bytes=3\n", "line 2: feature 1 has a rule already"},
		{"sample 1 weight=3\nsample 1 weight=3\n", "line 2: sample 1 has a rule already"},
	} {
		if _, err := ReadRules(strings.NewReader(tc.text), "rules"); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: got %v, want %q", tc.text, err, tc.want)
		}
	}
	late := require.Value(ReadRules(strings.NewReader("sample 5 weight=1\n"), "rules"))(t)
	if _, _, err := late.Apply(g); err == nil || !strings.Contains(err.Error(), "rules, line 1: sample 5: the data has only 4") {
		t.Errorf("got %v", err)
	}
}

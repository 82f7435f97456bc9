package prerun

import (
	"bytes"
	"context"
	"errors"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/graph"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/partition/stream"
	"github.com/psidecar/psidecar/planner/plan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// writeData writes libsvm text to a new file and returns its path.
func writeData(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "data.libsvm")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// twoTopics has rows 0, 2 on features 1, 2, 3 and rows 1, 3 on 7, 8, 9.
const twoTopics = "+1 1:1 2:.5 3:1\n-1 7:1 8:2 9:1\n# in between\n+1 1:3 2:1 3:1\n-1 7:1 8:1 9:0.25\n"

func graphOf(t *testing.T, in Input) *graph.Graph {
	t.Helper()
	g, err := in.Graph(t.Context())
	if err != nil {
		t.Fatal(err)
	}
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
	g, err := graph.Random{Samples: 200, Params: 300, Degree: 6, Seed: 1}.Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o := partition.Options{K: 4, Theta: 1, Seed: 99}
	b, err := RandomBaseline(t.Context(), g, o)
	if err != nil {
		t.Fatal(err)
	}
	var sum, total int64
	for seed := uint64(1); seed <= 5; seed++ {
		a, err := partition.Random(t.Context(), g, partition.Options{K: 4, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
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
	keys, err := dataset.ParseKeyMap("spread")
	if err != nil {
		t.Fatal(err)
	}
	// The directory's name is no pattern, whatever it looks like.
	out := Output{Dir: filepath.Join(t.TempDir(), "new", "[dir] *?"), K: 2, Algorithm: "best", KeyMap: keys, Servers: []int{1, 0}}
	for range 2 { // a second time over the first
		if err := out.Write(t.Context(), in, g, a); err != nil {
			t.Fatal(err)
		}
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
	p, err := plan.ReadPlacementFile(filepath.Join(out.Dir, "placement.json"))
	if err != nil {
		t.Fatal(err)
	}
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
	if err := os.WriteFile(kept, []byte("as it was"), 0o600); err != nil {
		t.Fatal(err)
	}
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
		if err := os.WriteFile(in.Path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
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
	for name, write := range map[string]func(out Output) error{
		"at once": func(out Output) error { return out.Write(t.Context(), bad, g, a) },
		"streamed": func(out Output) error {
			o := stream.Options{K: out.K, Passes: 1, Memory: stream.LeastMemory(out.K), Scratch: t.TempDir()}
			_, err := Stream(t.Context(), []Input{bad}, o, out)
			return err
		},
	} {
		out := Output{Dir: t.TempDir(), K: 1}
		if err := out.Write(t.Context(), in, g, a); err != nil {
			t.Fatal(err)
		}
		if err := write(out); err == nil {
			t.Errorf("%s: a malformed line was written", name)
		}
		if _, err := os.Stat(out.placementPath()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the placement of the earlier partition: %v", name, err)
		}
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
	if err := out.Write(t.Context(), in, g, a); err != nil {
		t.Fatal(err)
	}
	shard, err := dataset.Load(t.Context(), filepath.Join(out.Dir, ShardName(0)), dataset.Options{})
	if err != nil {
		t.Fatal(err)
	}
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
	rules, err := ReadRules(strings.NewReader("# sizes\nfeature 2 bytes=256 group=a\nfeature 9 group=a machine=1 # hot\nfeature 5 machine=0\nsample 4 weight=3 machine=1\n"), "rules", 2)
	if err != nil {
		t.Fatal(err)
	}
	o := partition.Options{K: 2}
	weighted, unused, err := rules.Apply(g, &o)
	if err != nil {
		t.Fatal(err)
	}
	if unused != 1 {
		t.Errorf("%d unused rules, want 1: no sample uses feature 5", unused)
	}
	if weighted.ParamWeight(1) != 256 || weighted.ParamWeight(0) != 1 || weighted.SampleWeight(3) != 3 || weighted.SamplesWeight() != 6 {
		t.Error("weights differ from the rules")
	}
	if !slices.Equal(o.Group, []int32{-1, 0, -1, -1, -1, 0}) || !slices.Equal(o.FixedParams, []int32{-1, -1, -1, -1, -1, 1}) || !slices.Equal(o.FixedSamples, []int32{-1, -1, -1, 1}) {
		t.Errorf("options %+v", o)
	}
	for _, tc := range []struct{ text, want string }{
		{"feature 1\n", "rules, line 1: want \"feature ID\""},
		{"\nthing 1 bytes=3\n", "rules, line 2: want \"feature ID\""},
		{"feature x bytes=3\n", `feature "x"`},
		{"sample 0 weight=3\n", `sample "0"`},
		{"feature 1 machine=2\n", "machine=2: want a machine from 0 to 1"},
		{"feature 1 bytes=0\n", "bytes=0: want a whole number"},
		{"feature 1 weight=3\n", `"weight=3": a feature may have`},
		{"sample 1 group=a\n", `"group=a": a feature may have`},
		{"feature 1 bytes=3\nfeature 1 bytes=3\n", "line 2: feature 1 has a rule already"},
		{"sample 1 weight=3\nsample 1 weight=3\n", "line 2: sample 1 has a rule already"},
	} {
		if _, err := ReadRules(strings.NewReader(tc.text), "rules", 2); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: got %v, want %q", tc.text, err, tc.want)
		}
	}
	late, err := ReadRules(strings.NewReader("sample 5 machine=1\n"), "rules", 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := late.Apply(g, &o); err == nil || !strings.Contains(err.Error(), "rules, line 1: sample 5: the data has only 4") {
		t.Errorf("got %v", err)
	}
	// All fixed to one machine says something, no rule at all says nothing.
	all, err := ReadRules(strings.NewReader("sample 1 machine=1\nsample 2 machine=1\nsample 3 machine=1\nsample 4 machine=1\n"), "rules", 2)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := all.Apply(g, &o); err != nil || !slices.Equal(o.FixedSamples, []int32{1, 1, 1, 1}) || o.Group != nil {
		t.Errorf("all on machine 1: %+v, %v", o, err)
	}
}

func TestPlotIsAPicture(t *testing.T) {
	for _, k := range []int{1, 8, 64} {
		var reports []*Report
		for i, name := range []string{"random", "tsh1", "best"} {
			r := &Report{Algorithm: name, K: k, Traffic: partition.Traffic{Max: 100, PerMachine: make([]int64, k)}}
			for machine := range r.Traffic.PerMachine {
				r.Traffic.PerMachine[machine] = int64(100 / (i + 1))
			}
			reports = append(reports, r)
		}
		var out bytes.Buffer
		if err := Plot(&out, "test", reports); err != nil {
			t.Fatal(err)
		}
		picture, err := png.Decode(&out)
		if err != nil {
			t.Fatal(err)
		}
		// Bars of each algorithm's colour are there.
		seen := map[[3]uint32]bool{}
		for x := range picture.Bounds().Dx() {
			for y := range picture.Bounds().Dy() {
				r, g, b, _ := picture.At(x, y).RGBA()
				seen[[3]uint32{r >> 8, g >> 8, b >> 8}] = true
			}
		}
		for i := range reports {
			r, g, b, _ := palette()[i].RGBA()
			if !seen[[3]uint32{r >> 8, g >> 8, b >> 8}] {
				t.Errorf("k = %d: no bar of %s in the picture", k, reports[i].Algorithm)
			}
		}
	}
	if err := Plot(&bytes.Buffer{}, "none", nil); err == nil {
		t.Error("a plot of nothing: want an error")
	}
}

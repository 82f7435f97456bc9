package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/beam/sdks/v2/go/pkg/beam"
	_ "github.com/apache/beam/sdks/v2/go/pkg/beam/io/filesystem/local"
	"github.com/apache/beam/sdks/v2/go/pkg/beam/testing/ptest"
	"pgregory.net/rapid"

	_ "github.com/apache/beam/sdks/v2/go/pkg/beam/runners/prism"

	"github.com/psidecar/psidecar/internal/plan"
	"github.com/psidecar/psidecar/planner/dataset"
	"github.com/psidecar/psidecar/planner/partition"
	"github.com/psidecar/psidecar/planner/partition/blocks"
	"github.com/psidecar/psidecar/planner/prerun"
	"github.com/psidecar/psidecar/test/graphs"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) { ptest.MainWithDefault(m, "prism") }

// write writes synthetic rows into shards, and into one file with all of them.
func write(t testing.TB, dir string, rows, shards int) (pattern, all string) {
	t.Helper()
	var text bytes.Buffer
	if _, err := dataset.WriteLibsvm(&text, dataset.SyntheticText(dataset.TextOptions{Samples: rows, Features: 3 * rows, Words: 20, Seed: 5})); err != nil {
		t.Fatal(err)
	}
	all = filepath.Join(dir, "all.libsvm")
	save(t, all, text.String())
	lines := strings.SplitAfter(strings.TrimSuffix(text.String(), "\n"), "\n")
	for i := range shards {
		part := strings.Join(lines[i*len(lines)/shards:(i+1)*len(lines)/shards], "")
		save(t, filepath.Join(dir, fmt.Sprintf("part-%05d-of-%05d", i, shards)), part)
	}
	return filepath.Join(dir, "part-*"), all
}

// save writes a file.
func save(t testing.TB, name, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
}

// run builds the pipeline and runs it on Prism, embedded in this process.
func run(t testing.TB, c Config, input string) error {
	t.Helper()
	shards := require.Value(Shards(t.Context(), input))(t)
	p := beam.NewPipeline()
	Build(p, c, shards)
	return ptest.Run(p)
}

// TestEqualsInMemory runs the pipeline and compares its outcome with that of the same steps one
// after the other in memory, which must not depend on lanes.
func TestEqualsInMemory(t *testing.T) {
	dir := t.TempDir()
	input, all := write(t, dir, 2500, 3)
	for _, tc := range []struct {
		name   string
		lanes  int
		keyMap string
	}{{"one lane", 1, "identity"}, {"three lanes", 3, "spread"}} {
		t.Run(tc.name, func(t *testing.T) {
			c := Config{K: 3, Seed: 7, Passes: 1, Memory: blocks.LeastMemory, Out: t.TempDir(), KeyMap: tc.keyMap, Servers: []int{2, 0, 1}, Lanes: tc.lanes}
			require.NoError(t, c.Validate())
			require.NoError(t, run(t, c, input))
			compare(t, c, all)
		})
	}
}

// compare checks all files of an outcome against [blocks.Partition] on the data in the file
// all.
func compare(t *testing.T, c Config, all string) {
	t.Helper()
	g := require.Value(graphs.FromFile(t.Context(), all, dataset.Options{}))(t)
	f := require.Value(os.Open(filepath.Join(c.Out, AssignmentName)))(t)
	defer f.Close()
	got, err := partition.ReadAssignment(f, f.Name(), g.Samples(), g.Params(), c.K)
	require.NoError(t, err)
	o := blocks.Options{K: c.K, Seed: c.Seed, Passes: c.Passes}
	if o.Blocks, o.Buckets, err = blocks.Fit(int64(g.Samples()), g.Edges(), c.K, c.Memory); err != nil {
		t.Fatal(err)
	}
	// Otherwise the test would pass without having run some of the steps.
	if o.Blocks < 6 {
		t.Fatalf("only %d blocks: not all waves have one", o.Blocks)
	}
	want := require.Value(blocks.Partition(t.Context(), g, o))(t)
	if !slices.Equal(got.Samples, want.Samples) || !slices.Equal(got.Params, want.Params) {
		t.Error("another assignment than in memory")
	}
	keyMap := require.Value(c.keyMap())(t)
	p := require.Value(plan.NewPlacement(want.Params, g.Feature, c.K, keyMap.Key))(t)
	p.Algorithm, p.Server = Algorithm, c.Servers
	wantFile := filepath.Join(t.TempDir(), "want.json")
	require.NoError(t, plan.WritePlacementFile(wantFile, p))
	wantText := require.Value(os.ReadFile(wantFile))(t)
	gotText := require.Value(os.ReadFile(filepath.Join(c.Out, PlacementName)))(t)
	if !bytes.Equal(gotText, wantText) {
		t.Errorf("placement of %d bytes differs from that in memory, of %d", len(gotText), len(wantText))
	}
	text := require.Value(os.ReadFile(filepath.Join(c.Out, ReportName)))(t)
	var r prerun.Report
	require.NoError(t, json.Unmarshal(text, &r))
	traffic := partition.Measure(g, want, c.K)
	if r.Traffic.Max != traffic.Max || r.Traffic.Total != traffic.Total || !slices.Equal(r.Traffic.PerMachine, traffic.PerMachine) || r.Parameters != g.Params() || r.Samples != g.Samples() || r.Edges != g.Edges() {
		t.Errorf("report %+v, want traffic %+v", r, traffic)
	}
	left, err := filepath.Glob(filepath.Join(c.Out, "*.part-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("parts left: %v, %v", left, err)
	}
}

// TestRubbishIsNamed: an error in the data says in which shard and line it is.
func TestRubbishIsNamed(t *testing.T) {
	dir := t.TempDir()
	save(t, filepath.Join(dir, "a.libsvm"), "1 2:1\n0 3:1\n")
	save(t, filepath.Join(dir, "b.libsvm"), "1 2:1\n0 3:1 rubbish\n")
	err := run(t, Config{K: 2, Memory: blocks.LeastMemory, Out: t.TempDir(), KeyMap: "identity", Lanes: 1}, dir)
	if want := filepath.Join(dir, "b.libsvm") + ", line 2: feature \"rubbish\""; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
}

// TestShards expands inputs: folders, patterns, lists, gaps, hidden files, and names that stand
// for nothing.
func TestShards(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"part-00000-of-00003.gz", "part-00002-of-00003.gz", ".hidden"} {
		save(t, filepath.Join(dir, name), "1 1:1\n")
	}
	ctx := t.Context()
	if _, err := Shards(ctx, dir); err == nil || !strings.Contains(err.Error(), dir+"/part-00001-of-00003.gz is missing: found 2 of 3") {
		t.Errorf("a gap: %v", err)
	}
	save(t, filepath.Join(dir, "part-00001-of-00003.gz"), "1 1:1\n")
	got, err := Shards(ctx, dir+"/")
	if err != nil || len(got) != 3 || !slices.IsSorted(got) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := Shards(ctx, got[2]+", "+got[0]+","+got[1]); err != nil || filepath.Base(got[0]) != "part-00002-of-00003.gz" {
		t.Errorf("%v, %v", got, err)
	}
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o700); err != nil { // which dir/* matches
		t.Fatal(err)
	}
	if got, err := Shards(ctx, dir); err != nil || len(got) != 3 {
		t.Errorf("beside an empty folder: %v, %v", got, err)
	}
	for input, want := range map[string]string{
		empty: empty + ": no such shard", empty + "/": "no such shard",
		dir + "/none": dir + "/none: no such shard", got[0] + "," + dir + "/none": dir + "/none: no such shard",
		dir + "/*.none": "no such shard", "": "without a name", "nosuch://bucket/x": "nosuch",
	} {
		if got, err := Shards(ctx, input); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", input, got, err)
		}
	}
}

// TestSketchEqualsSorting compares merged sketches with the least of all hashes, sorted.
func TestSketchEqualsSorting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 8
		sets := rapid.SliceOfN(rapid.SliceOfN(rapid.Uint64Range(0, 40), 0, 30), 1, 4).Draw(t, "sets")
		var all []uint64
		merged := newSketch(size)
		for _, ids := range sets {
			s := newSketch(size)
			for _, id := range ids {
				s.add(id)
			}
			merged.merge(s.ids(), s.full())
			all = append(all, ids...)
		}
		slices.SortFunc(all, func(a, b uint64) int {
			switch x, y := dataset.Spread(a), dataset.Spread(b); {
			case x < y:
				return -1
			case x > y:
				return 1
			}
			return 0
		})
		all = slices.Compact(all)
		want := slices.Sorted(slices.Values(all[:min(size, len(all))]))
		if !slices.Equal(merged.ids(), want) || merged.full() != (len(all) > size) {
			t.Fatalf("%v, full %t, want %v of %d", merged.ids(), merged.full(), want, len(all))
		}
	})
	s := newSketch(1024)
	for id := range uint64(100_000) {
		s.add(id)
	}
	if e := s.estimate(); e < 90_000 || e > 110_000 {
		t.Errorf("100000 features are taken for %.0f", e)
	}
}

// TestPartsHoldAll cuts lists at random splits: all features come back, each in the part that
// featurePart says.
func TestPartsHoldAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		m := &Meta{Splits: slices.Compact(slices.Sorted(slices.Values(rapid.SliceOfN(rapid.Uint64Range(0, 60), 0, 5).Draw(t, "splits"))))}
		var list []owned
		for id := range uint64(64) {
			if random.IntN(3) > 0 {
				list = append(list, owned{id, uint16(random.IntN(4))})
			}
		}
		var back []owned
		last := -1
		emitParts(list, m.featurePart, func(part int, value []byte) {
			got, err := decodeOwned(value, nil)
			if err != nil || part <= last || part > len(m.Splits) {
				t.Fatal(part, err)
			}
			for _, o := range got {
				if part > 0 && o.id <= m.Splits[part-1] || part < len(m.Splits) && o.id > m.Splits[part] {
					t.Fatalf("feature %d in part %d of splits %v", o.id, part, m.Splits)
				}
			}
			last, back = part, append(back, got...)
		})
		if !slices.Equal(back, list) {
			t.Fatalf("%v became %v", list, back)
		}
	})
}

// FuzzOwned decodes arbitrary bytes: what passes is in order.
func FuzzOwned(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, in []byte) {
		list, err := decodeOwned(in, nil)
		if err != nil {
			return
		}
		for i := 1; i < len(list); i++ {
			if list[i].id < list[i-1].id {
				t.Fatal("owners out of order")
			}
		}
	})
}

// TestConfigIsValidated changes one field of a valid Config at a time to something that is
// refused.
func TestConfigIsValidated(t *testing.T) {
	good := Config{K: 2, Memory: blocks.LeastMemory, Out: "x", KeyMap: "spread", Lanes: 1}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Config){
		"no machines": func(c *Config) { c.K = 0 }, "little memory": func(c *Config) { c.Memory-- }, "no folder": func(c *Config) { c.Out = "" },
		"another key map": func(c *Config) { c.KeyMap = "file:x" }, "no workers": func(c *Config) { c.Lanes = 0 }, "passes": func(c *Config) { c.Passes = -1 },
		"a rank twice": func(c *Config) { c.Servers = []int{1, 1} }, "a rank too many": func(c *Config) { c.Servers = []int{0, 1, 2} },
	} {
		c := good
		if change(&c); c.Validate() == nil {
			t.Errorf("%s passes", name)
		}
	}
}

// TestTruncatedShard reads a shard that has fewer rows than at the first reading.
func TestTruncatedShard(t *testing.T) {
	name := filepath.Join(t.TempDir(), "x.libsvm")
	save(t, name, "1 1:1\n0 2:1\n")
	c := Config{K: 1, Memory: blocks.LeastMemory, Out: "x", KeyMap: "identity", Lanes: 1}
	m := require.Value(c.plan([]count{{Rows: 3, Edges: 3, Distinct: []uint64{1, 2, 3}}}))(t)
	text := require.Value(m.encode())(t)
	f := &loadFn{Config: c}
	err := f.ProcessElement(context.Background(), Shard{0, name}, text, func(int64, []byte) {})
	if err == nil || !strings.Contains(err.Error(), "changed between two readings") || !strings.Contains(err.Error(), name) {
		t.Errorf("a shard that lost a row: %v", err)
	}
}

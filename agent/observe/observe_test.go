package observe_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/agent/counts"
	"github.com/psidecar/psidecar/agent/observe"
	"github.com/psidecar/psidecar/test/replay"
	"github.com/psidecar/psidecar/test/require"
)

var update = flag.Bool("update", false, "write the golden files anew")

// recordings are the traffic recordings of real programs.
var recordings = []string{"dmlc-kv-2s2w", "dmlc-kv-1s3w", "dmlc-resend-2s2w", "dmlc-heartbeat-2s1w", "byteps-kv-2s2w"}

func watch(t *testing.T, recording string) *observe.Observer {
	t.Helper()
	f := require.Value(os.Open(require.Capture(t, recording+".pcapng")))(t)
	defer f.Close()
	o := observe.New(observe.Options{Locality: counts.DefaultLocalityOptions})
	totals := require.Value(replay.Read(f, o.Handle))(t)
	if totals != (replay.Totals{}) {
		t.Fatalf("left out: %+v", totals)
	}
	return o
}

// summary is what a golden file holds of a recording.
type summary struct {
	Job     string
	Dialect string
	Nodes   []string
	Totals  counts.Totals
	Sums    counts.Sums
	Keys    uint64
	Steps   []uint64
	Pairs   map[string]counts.Pair
	Hottest []string
}

func summarize(v observe.JobView) summary {
	s := summary{
		Job: v.Job.Scheduler.String(), Dialect: v.Dialect.String(), Totals: v.Job.Sums.Totals(),
		Sums: v.Job.Sums.Table.Size().Total, Keys: v.Job.Sums.Table.Size().Keys, Pairs: map[string]counts.Pair{},
	}
	for _, n := range v.Nodes {
		s.Nodes = append(s.Nodes, fmt.Sprintf("%s %s (%s)", n.Name, n.Address, n.RankFrom))
	}
	all := v.Job.Sums.All()
	s.Steps = all.Steps
	for w, row := range all.Pairs {
		for i, p := range row {
			s.Pairs[v.WorkersByIndex[w]+" "+v.ServersByIndex[i]] = p
		}
	}
	hottest, _ := v.Job.Sums.Table.Hottest(1000)
	slices.SortFunc(hottest, func(a, b counts.HotKey) int {
		return strings.Compare(fmt.Sprintf("%020d", a.Key), fmt.Sprintf("%020d", b.Key))
	})
	for _, k := range hottest[:min(20, len(hottest))] {
		s.Hottest = append(s.Hottest, fmt.Sprintf("%d: %v", k.Key, k.Sums))
	}
	return s
}

// What the recordings say, against golden files; those were compared with an
// independent count of messages and bytes (see TestRecordingTotals).
func TestRecordings(t *testing.T) {
	for _, name := range recordings {
		t.Run(name, func(t *testing.T) {
			o := watch(t, name)
			var got []summary
			for _, v := range o.Jobs() {
				got = append(got, summarize(v))
			}
			if len(got) != 1 || got[0].Dialect != strings.SplitN(name, "-", 2)[0] {
				t.Fatalf("%d jobs, want one in dialect %s", len(got), strings.SplitN(name, "-", 2)[0])
			}
			text := require.Value(json.MarshalIndent(got[0], "", "\t"))(t)
			golden := filepath.Join("testdata", name+".golden.json")
			if *update {
				require.NoError(t, os.WriteFile(golden, append(text, '\n'), 0o600))
			}
			want := require.Value(os.ReadFile(golden))(t)
			if string(text)+"\n" != string(want) {
				t.Errorf("differs from %s (go test -run TestRecordings -update writes it):\n%s", golden, text)
			}
			if m := o.Misses(); m != (observe.Misses{}) {
				t.Errorf("not counted: %+v", m)
			}
		})
	}
}

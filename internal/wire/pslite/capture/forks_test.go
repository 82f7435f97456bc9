package capture

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/test/require"
)

// Recordings of forks of PS-lite: programs of the fork's own, or jobs written for its
// own worker and server. What is not read is told by its fork, and no message of a fork
// is taken for another's.
func TestForksAreToldAndNotMistaken(t *testing.T) {
	for _, rec := range []struct {
		name    string
		fork    pslite.Fork
		read    uint64 // messages that are the same in dialect dmlc
		foreign uint64
	}{
		{"adapm-simple-3s", pslite.AdaPM, 0, 400},
		{"elastic-kv-2s2w", pslite.Elastic, 108, 64},
		{"geomx-kv-1s2w", pslite.GeoMX, 0, 142},
		{"stepmesh-joining-2s2w", pslite.StepMesh, 0, 23},
		{"hetu-tensors-2s2w", pslite.Hetu, 0, 201},
		{"graphmix-nodes-2s", pslite.Hetu, 0, 187},
	} {
		t.Run(rec.name, func(t *testing.T) {
			file := require.Value(os.ReadFile(filepath.Join("testdata", "forks", rec.name+".pcap")))(t)
			totals := require.Value(Read(bytes.NewReader(file), Options{Data: true}, func(m *Message) error {
				if m.Dialect != pslite.DMLC || !m.Meta.Data() && m.Meta.Control.Cmd != pslite.Terminate {
					t.Errorf("read: %s", line(m))
				}
				return m.Check()
			}))(t)
			want := totals
			want.Messages, want.NotPSLite, want.Forks = rec.read, rec.foreign, [pslite.Forks]uint64{}
			want.Forks[rec.fork] = rec.foreign
			if totals != want {
				t.Errorf("got %+v, want %+v", totals, want)
			}
		})
	}
}

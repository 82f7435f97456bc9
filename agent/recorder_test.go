package agent

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/recording"
	"github.com/psidecar/psidecar/test/require"
)

// later is a node whose rank becomes known.
type later struct{ name string }

func (l *later) Name() string { return l.name }
func (l *later) Ranked() bool { return l.name[0] != '@' }

// A recording that begins beside a job has its nodes by one name each, in the order of
// uses, and by those that they have where better ones do not come.
func TestRecorderNamesNodes(t *testing.T) {
	second := func(n int) int64 { return int64(n) * int64(time.Second) }
	for name, tc := range map[string]struct {
		uses   int
		every  int64 // between uses
		ranked int   // the use before which the rank becomes known
		want   []string
	}{
		"known from the start":              {3, second(1), 0, []string{"worker0", "worker0", "worker0"}},
		"known later":                       {4, second(1), 3, []string{"worker0", "worker0", "worker0", "worker0"}},
		"known by its end":                  {3, second(1), 3, []string{"worker0", "worker0", "worker0"}},
		"after some uses that did not wait": {4, second(6), 3, []string{"@1:9", "worker0", "worker0", "worker0"}},
		"never":                             {2, second(1), 9, []string{"@1:9", "@1:9"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRecorder(nil)
			worker, server := &later{"@1:9"}, &later{"server0"}
			for i := range tc.uses {
				if i == tc.ranked {
					worker.name = "worker0"
				}
				r.recordUse(unnamed{recording.Use{Job: "1:1", UnixNanos: int64(i) * tc.every, Keys: []uint64{uint64(i)}}, worker, server})
			}
			if tc.uses == tc.ranked {
				worker.name = "worker0"
			}
			var names []string
			for i, u := range written(t, r) {
				names = append(names, u.Worker)
				if u.Keys[0] != uint64(i) || u.Server != "server0" {
					t.Errorf("use %d is %+v", i, u)
				}
			}
			if !slices.Equal(names, tc.want) {
				t.Errorf("the worker is called %q, want %q", names, tc.want)
			}
		})
	}
}

// A bounded number wait for names; those beyond it are written all the same.
func TestRecorderHoldsSoMany(t *testing.T) {
	r := NewRecorder(nil)
	worker := &later{"@1:9"}
	for i := range waitingUses {
		r.recordUse(unnamed{recording.Use{Job: "1:1", Keys: []uint64{uint64(i)}}, worker, worker})
		if len(r.unnamed) > waitingUses/2 {
			t.Fatalf("%d uses wait for names", len(r.unnamed))
		}
	}
	if n := len(written(t, r)); n != waitingUses || r.dropped.Load() != 0 {
		t.Errorf("%d of %d uses are written", n, waitingUses)
	}
}

// written has the recorder write what it has, and returns that.
func written(t *testing.T, r *Recorder) (uses []recording.Use) {
	t.Helper()
	var file bytes.Buffer
	w := require.Value(recording.NewWriter(&file, recording.Header{}))(t)
	ended, end := context.WithCancel(t.Context())
	end()
	require.Value(r.Run(ended, w))(t)
	if _, _, err := recording.Read(&file, func(u *recording.Use) error {
		use := *u
		use.Keys = slices.Clone(u.Keys)
		uses = append(uses, use)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if r.keys.Load() != 0 || r.held != 0 {
		t.Errorf("%d keys wait, %d of them for names", r.keys.Load(), r.held)
	}
	return uses
}

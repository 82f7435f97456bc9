package main

import (
	"testing"
	"time"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// Thirty hosts of two jobs: keys that workers turn to are planned for, all proxies
// hear of it, and after kill -9 of the planner all come back to the same plans.
func TestFleet(t *testing.T) {
	require.Time(t)
	program := []string{hoststest.BuildJob(t, "cmd/psidecar"), "planner"}
	o := defaults
	o.Hosts, o.Keys, o.Hot, o.Shared, o.Window = 30, 1e6, 40, 8, 512
	o.Every, o.Warm, o.During, o.Shifts, o.Away, o.Patience = 200*time.Millisecond, 2*time.Second, 2*time.Second, 1, 300*time.Millisecond, 2*time.Minute
	o.Say = func(what string) { t.Log(what) }
	for name, dense := range map[string]bool{"hashed": false, "dense": true} {
		t.Run(name, func(t *testing.T) {
			o.Dense = dense
			r := require.Value(play(t.Context(), program, t.TempDir(), o))(t)
			if s := r.Shifts[0]; s.First == 0 || s.Known == 0 || s.Known > s.Keys {
				t.Errorf("the shift: %+v", s)
			}
			if b := r.Restart; !b.Same || b.Connections < 3*o.Hosts || b.Back.Last < b.Back.First {
				t.Errorf("the restart: %+v", b)
			}
			if l := r.Steady; l.Cores <= 0 || l.InPerSecond <= 0 || l.OutPerSecond <= 0 || l.ResidentBytes == 0 || l.ReportsPerSecond <= 0 {
				t.Errorf("the load: %+v", l)
			}
		})
	}
}

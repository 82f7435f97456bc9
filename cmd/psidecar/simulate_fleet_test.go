package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/psidecar/psidecar/client/loadtest"
	"github.com/psidecar/psidecar/internal/logs"
)

// TestPlannerOfAFleet is the planner's process in TestFleet: this test's program with
// its arguments.
func TestPlannerOfAFleet(t *testing.T) {
	if flag.NArg() == 0 {
		return
	}
	if code := run(context.Background(), env{args: append([]string{"planner"}, flag.Args()...), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr,
		lookup: func(string) (string, bool) { return "", false }}); code != 0 {
		t.Fatalf("exit code %d", code)
	}
}

// Thirty hosts of two jobs: keys that workers turn to are planned for, all proxies
// hear of it, and after kill -9 of the planner all come back to the same plans.
func TestFleet(t *testing.T) {
	o := loadtest.DefaultOptions
	o.Hosts, o.Keys, o.Hot, o.Shared, o.Window = 30, 1e6, 40, 8, 512
	o.Every, o.Warm, o.During, o.Shifts, o.Away, o.Patience = 200*time.Millisecond, 2*time.Second, 2*time.Second, 1, 300*time.Millisecond, 2*time.Minute
	for name, dense := range map[string]bool{"hashed": false, "dense": true} {
		t.Run(name, func(t *testing.T) {
			o.Dense = dense
			r, err := loadtest.Run(t.Context(), []string{os.Args[0], "-test.run=^TestPlannerOfAFleet$", "--"}, t.TempDir(), o)
			if err != nil {
				t.Fatal(err)
			}
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

// Beside its verb fleet simulate still takes recordings.
func TestSimulateTakesFiles(t *testing.T) {
	root := newRootCommand(env{stdout: io.Discard, stderr: io.Discard, log: logs.New(io.Discard, 0), lookup: func(string) (string, bool) { return "", false }})
	root.SetArgs([]string{"simulate", filepath.Join(t.TempDir(), "job.psr")})
	if err := root.ExecuteContext(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a recording that is not there: %v", err)
	}
}

package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/require"
)

// mountState makes a proxy's state folder a file system of its own.
func (f *fleet) mountState(s *sidecar) {
	f.t.Helper()
	if f.config.state == 0 {
		return
	}
	require.NoError(f.t, os.MkdirAll(s.state, 0o755))
	require.NoError(f.t, os.Chmod(filepath.Dir(s.state), 0o755))
	mount(f.t, s.state, fmt.Sprintf("size=%d,mode=700,uid=%d,gid=%d", f.config.state, nobody, nobody))
}

// TestStateRunsFull fills the state folders of proxies while they carry a job with
// PS_RESEND. Its keys are not moved, and its proxies say why. When there is room
// keys move; a proxy that is killed then knows all.
func TestStateRunsFull(t *testing.T) {
	t.Parallel()
	f := newFleet(t, config{state: 512 << 10, plan: elsewhere(t, 4)})
	j := f.countingSlowly()
	j.Env = append(j.Env, resending...)
	r := f.start(j)
	r.training()
	for _, s := range f.sidecars {
		fill(t, filepath.Join(s.state, "filler"))
	}
	f.propose()
	f.psidecar("plan", "apply")
	f.full()
	if r.over() {
		t.Fatal("the job has ended before there was room")
	}
	f.makeRoom()
	f.stand(displaced)
	f.untroubled()
	for _, s := range f.sidecars {
		old := s.proxy.Current()
		s.proxy.kill()
		f.await("another "+s.proxy.String(), func() error { return s.proxy.runs(old) })
		f.ready(s)
	}
	f.stand(displaced)
	r.exact()
	f.unguarded()
}

// full waits until all proxies say that their state folders are.
func (f *fleet) full() {
	f.t.Helper()
	for _, s := range f.sidecars {
		f.await(s.proxy.String()+" to say that its state folder is full", func() error {
			all := f.state(s).Jobs
			if len(all) != 1 || !strings.Contains(all[0].Trouble, "no space left") || all[0].Displaced != 0 || all[0].Split != 0 {
				return fmt.Errorf("%+v", all)
			}
			return nil
		})
	}
}

func (f *fleet) makeRoom() {
	f.t.Helper()
	for _, s := range f.sidecars {
		require.NoError(f.t, os.Remove(filepath.Join(s.state, "filler")))
	}
}

// TestStateHarmed cuts and removes what proxies keep while they run and keys are
// displaced. None ends, all is written again, and those that are killed after
// that lack nothing.
func TestStateHarmed(t *testing.T) {
	t.Parallel()
	f := newFleet(t, config{plan: elsewhere(t, 4)})
	j := f.countingSlowly()
	j.Env = append(j.Env, resending...)
	r := f.start(j)
	r.training()
	f.propose()
	f.psidecar("plan", "apply", "--wait", "5m")
	f.stand(displaced)
	running := map[*sidecar]*hosts.Process{}
	for i, s := range f.sidecars {
		running[s] = s.proxy.Current()
		f.harm(s, i)
	}
	for _, s := range f.sidecars {
		f.await(s.proxy.String()+" to write anew what was harmed", func() error {
			for _, name := range []string{"job.json", "worker-*"} {
				files, _ := filepath.Glob(filepath.Join(s.state, "*", name))
				if len(files) != 1 {
					return fmt.Errorf("%d files %s", len(files), name)
				}
				if info, err := os.Stat(files[0]); err != nil || info.Size() < 100 {
					return fmt.Errorf("%s: %v, %v", files[0], info, err)
				}
			}
			return nil
		})
		if s.proxy.Current() != running[s] {
			t.Errorf("%s has ended", s.proxy)
		}
	}
	f.untroubled()
	if r.over() {
		t.Fatal("the job has ended before its proxies were killed")
	}
	for _, s := range f.sidecars {
		s.proxy.kill()
		f.await("another "+s.proxy.String(), func() error { return s.proxy.runs(running[s]) })
		f.ready(s)
	}
	f.stand(displaced)
	r.exact()
	f.unguarded()
}

// harm does something else to each proxy's files.
func (f *fleet) harm(s *sidecar, how int) {
	f.t.Helper()
	files, err := filepath.Glob(filepath.Join(s.state, "*", "worker-*"))
	if err != nil || len(files) != 1 {
		f.t.Fatalf("%d ledgers on %s, %v", len(files), s.host.Name, err)
	}
	job := filepath.Join(filepath.Dir(files[0]), "job.json")
	for _, path := range []string{files[0], job} {
		switch how % 4 {
		case 0:
			err = os.Truncate(path, 0)
		case 1:
			err = os.Truncate(path, 20)
		case 2:
			err = os.Remove(path)
		case 3:
			err = os.RemoveAll(filepath.Dir(path))
		}
		require.NoError(f.t, err)
	}
}

// untroubled waits until what proxies keep is written.
func (f *fleet) untroubled() {
	f.t.Helper()
	for _, s := range f.sidecars {
		f.await(s.proxy.String()+" to keep what it must", func() error {
			for _, j := range f.state(s).Jobs {
				if j.Trouble != "" {
					return fmt.Errorf("%s: %s", j.Job, j.Trouble)
				}
			}
			return nil
		})
	}
}

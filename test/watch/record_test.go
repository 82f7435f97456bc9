package watch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/internal/recording"

	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// A recording replays to exactly what the workers did.
func TestRecord(t *testing.T) {
	require.BPF(t)
	psjob, psidecar := hosts.Program{hoststest.BuildJob(t, "cmd/psjob"), "--json"}, hoststest.BuildJob(t, "cmd/psidecar")
	net := hoststest.New(t, hosts.Config{Hosts: 2})
	dir := t.TempDir()
	file := filepath.Join(dir, "recording")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	record := exec.CommandContext(ctx, psidecar, "record", "--out", file, "--cgroup", net.Cgroup(), "--sample", "1")
	record.Stderr = os.Stderr
	require.NoError(t, record.Start())
	for attached(t, net.Cgroup()) == 0 && ctx.Err() == nil {
		sleep(ctx, time.Millisecond)
	}
	j := hosts.Job{Scheduler: psjob, Servers: hosts.Repeat(2, psjob), Hosts: net.Hosts()}
	for i := range 2 {
		j.Workers = append(j.Workers, append(hosts.Program{}, psjob[0], "--json", "--model", "count", "--count-lens",
			"--steps", "100", "--access-log", filepath.Join(dir, strconv.Itoa(i))))
	}
	require.Value(j.Run(ctx))(t)
	require.NoError(t, record.Process.Signal(os.Interrupt))
	require.NoError(t, record.Wait())
	got := replayed(t, file)
	for i := range 2 {
		rank, want := readAccessLog(t, filepath.Join(dir, strconv.Itoa(i)))
		name := fmt.Sprintf("worker%d", rank)
		compare(t, name, got[name], want)
	}
}

// replayed adds a recording up, by worker and key.
func replayed(t testing.TB, path string) map[string]map[uint64]hoststest.PeerAccess {
	t.Helper()
	f := require.Value(os.Open(path))(t)
	defer f.Close()
	all := map[string]map[uint64]hoststest.PeerAccess{}
	_, totals, err := recording.Read(f, func(u *recording.Use) error {
		keys := all[u.Worker]
		if keys == nil {
			keys = map[uint64]hoststest.PeerAccess{}
			all[u.Worker] = keys
		}
		sum := uint64(0)
		for _, n := range u.Lens {
			sum += uint64(n)
		}
		for i, k := range u.Keys {
			bytes := u.Bytes / uint64(len(u.Keys))
			if sum > 0 {
				bytes = u.Bytes / sum * uint64(u.Lens[i])
			}
			a := keys[k]
			switch {
			case u.Answer:
				a.PullBytes += bytes
			case u.Push:
				a.Pushes++
				a.PushBytes += bytes
			default:
				a.Pulls++
			}
			keys[k] = a
		}
		return nil
	})
	if err != nil || totals.Dropped > 0 {
		t.Fatalf("%v, %d dropped", err, totals.Dropped)
	}
	return all
}

// A recording that ends by --for has ended in order, and the next one does not
// overwrite it unasked.
func TestRecordFor(t *testing.T) {
	require.BPF(t)
	psidecar := hoststest.BuildJob(t, "cmd/psidecar")
	net := hoststest.New(t, hosts.Config{Hosts: 1})
	file := filepath.Join(t.TempDir(), "recording")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	record := func(flags ...string) (string, error) {
		args := append([]string{"record", "--out", file, "--cgroup", net.Cgroup(), "--for", "100ms"}, flags...)
		out, err := exec.CommandContext(ctx, psidecar, args...).CombinedOutput()
		return string(out), err
	}
	for _, flags := range [][]string{nil, {"--force"}} {
		if out, err := record(flags...); err != nil {
			t.Fatalf("record %v: %v\n%s", flags, err, out)
		}
		if len(replayed(t, file)) != 0 {
			t.Error("uses were recorded of no job")
		}
		before := require.Value(os.ReadFile(file))(t)
		out, err := record()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(out, "--force") {
			t.Errorf("a file that is there: %v, %s", err, out)
		}
		if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
			t.Errorf("the file was changed: %v", err)
		}
	}
}

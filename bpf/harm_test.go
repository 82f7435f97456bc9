package bpf

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// TestRingFullCostsTheJobNothing: a reader that does not read costs the job nothing; what was
// not copied is counted, in the counters, for the stream, and in the records.
func TestRingFullCostsTheJobNothing(t *testing.T) {
	n := hoststest.New(t, hosts.Config{Hosts: 1})
	h := n.Host(0)
	c := openTest(t, Options{RingBytes: minRingBytes})
	require.NoError(t, c.Attach(h.Cgroup()))
	stream := newStreamMaker(17).job(20_000, 4)
	x := startTransfer(t, h, h, h.IPv4.String(), 8192)
	x.send(stream)
	x.finish()
	if x.received != int64(len(stream)) {
		t.Fatalf("%d of %d bytes arrived", x.received, len(stream))
	}

	counts := require.Value(c.Counts())(t)
	streams, err := c.Streams()
	if err != nil || len(streams) != 1 {
		t.Fatalf("%d streams, %v", len(streams), err)
	}
	s := streams[0]
	if counts[ReasonRingFull].Events == 0 || s.LostBatches != counts[ReasonRingFull].Events {
		t.Errorf("ring full %d times, %d batches of the stream lost", counts[ReasonRingFull].Events, s.LostBatches)
	}
	if s.Bytes != uint64(len(stream)) || s.Messages != 20_000 || s.Missed != 0 {
		t.Errorf("totals %+v must be exact all the same", s)
	}

	// The ring has room again: new records come, after the loss.
	var lost, batches uint64
	read := func() {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for c.Read(ctx, func(r *Record) {
			if r.Kind == KindLost {
				lost += r.Length
			}
			batches++
		}) == nil {
		}
	}
	read()
	if batches == 0 || batches > counts[ReasonCopied].Events*1000 {
		t.Errorf("%d records", batches)
	}
	if lost > s.LostBatches {
		t.Errorf("%d batches told as lost, %d were", lost, s.LostBatches)
	}
}

// TestLateInFullFlow: attached to a stream that flows already, the capture
// tells true messages of it and counts what came before as missed.
func TestLateInFullFlow(t *testing.T) {
	for _, values := range []int{4, 10_000, 1 << 20} {
		t.Run(fmt.Sprintf("values of %d bytes", values), func(t *testing.T) {
			n := hoststest.New(t, hosts.Config{Hosts: 2})
			from, to := n.Host(0), n.Host(1)
			m := newStreamMaker(19)
			stream := m.job(max(40, 20_000/(1+values/100)), values)
			x := startTransfer(t, from, to, to.IPv4.String(), 1<<16)
			x.send(stream[:len(stream)/5])
			w := watchCgroup(t, from.Cgroup(), Options{})
			x.send(stream[len(stream)/5:])
			x.finish()
			got, totals := w.stop()
			want, _, _, err := readStream(stream, false)
			require.NoError(t, err)
			t.Logf("%d of %d messages told, %d of %d bytes missed", len(got.messages), len(want), totals.Missed, totals.Bytes)
			if len(got.messages) < len(want)/3 || !totals.Late || !totals.Synced {
				t.Errorf("%d messages of %d told; %+v", len(got.messages), len(want), totals)
			}
			got.commands = nil
			if diff := got.differ(want[len(want)-len(got.messages):], nil); diff != "" {
				t.Errorf("%.1000s", diff)
			}
		})
	}
}

// attachedPrograms are what the kernel says is attached to a cgroup.
func attachedPrograms(t *testing.T, cgroup string) (n int) {
	t.Helper()
	dir := require.Value(os.Open(cgroup))(t)
	defer dir.Close()
	for _, hook := range []ebpf.AttachType{ebpf.AttachCGroupInetEgress, ebpf.AttachCGroupInetIngress} {
		result := require.Value(link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: hook}))(t)
		n += len(result.Programs)
	}
	return n
}

// TestKilledLeavesNothing: after kill -9 nothing stays attached.
func TestKilledLeavesNothing(t *testing.T) {
	require.BPF(t)
	cgroup := makeCgroup(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), attacherVariable+"="+cgroup)
	stdin := require.Value(cmd.StdinPipe())(t)
	defer stdin.Close()
	stdout := require.Value(cmd.StdoutPipe())(t)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != "attached\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if n := attachedPrograms(t, cgroup); n != 2 {
		t.Errorf("%d programs attached, want 2", n)
	}
	require.NoError(t, cmd.Process.Kill())
	if err := cmd.Wait(); err == nil {
		t.Error("the process ended by itself")
	}
	// The kernel frees links after the process.
	require.Eventually(t, "no program is attached", func() bool { return attachedPrograms(t, cgroup) == 0 })
}

func makeCgroup(t *testing.T) string {
	t.Helper()
	dir := require.Value(os.MkdirTemp(require.CgroupV2(t), "psd-bpf-"))(t)
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestAttach(t *testing.T) {
	c := openTest(t, Options{})
	cgroup := makeCgroup(t)
	below := filepath.Join(cgroup, "below")
	require.NoError(t, os.Mkdir(below, 0o755))
	defer os.Remove(below)
	require.NoError(t, c.Attach(cgroup))
	for path, want := range map[string]string{
		cgroup:               "already watched",
		below:                "counted twice",
		filepath.Dir(cgroup): "already watched",
		"/nonexistent":       "/nonexistent",
		t.TempDir():          "cgroup v2?",
	} {
		if err := c.Attach(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", path, err, want)
		}
	}
	if n := attachedPrograms(t, cgroup); n != 1 {
		t.Errorf("%d programs attached, want 1", n)
	}
	if err := c.Detach(cgroup); err != nil {
		t.Error(err)
	}
	if err := c.Detach(cgroup); err == nil {
		t.Error("detached twice")
	}
	if n := attachedPrograms(t, cgroup); n != 0 {
		t.Errorf("%d programs attached, want none", n)
	}
}

func TestBadOptions(t *testing.T) {
	for _, o := range []Options{{RingBytes: 1000}, {RingBytes: 3 << 20}, {RingBytes: 2 << 30}, {Streams: -1}, {Streams: 1 << 30}} {
		if c, err := Open(o); err == nil {
			t.Errorf("%+v: opened", o)
			c.Close()
		}
	}
}

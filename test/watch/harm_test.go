package watch

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"testing"
	"time"

	"github.com/psidecar/psidecar/bpf"
	"github.com/psidecar/psidecar/internal/hosts"

	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// An agent that is killed leaves nothing attached, and the job that it watched
// ends with the right sums.
func TestKilledAgent(t *testing.T) {
	require.BPF(t)
	program, psidecar := hoststest.BuildPeer(t), hoststest.BuildJob(t, "cmd/psidecar")
	on := hoststest.New(t, hosts.Config{Hosts: 2})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	running, err := hosts.Job{
		Scheduler: hosts.Program{program}, Servers: hosts.Repeat(2, hosts.Program{program}), Hosts: on.Hosts(),
		Workers: hosts.Repeat(2, hosts.Program{program, "--keys", "20000", "--space", "20000", "--rounds", "300"}),
	}.Start(ctx)
	require.NoError(t, err)
	for i := range 5 {
		var log bytes.Buffer
		agent := exec.CommandContext(ctx, psidecar, "agent", "--cgroup", on.Cgroup(), "--http", "", "--sample", "1", "--ring-size", "65536")
		agent.Stderr = &log
		require.NoError(t, agent.Start())
		for attached(t, on.Cgroup()) == 0 && ctx.Err() == nil {
			sleep(ctx, time.Millisecond)
		}
		sleep(ctx, time.Duration(i)*40*time.Millisecond)
		require.NoError(t, agent.Process.Kill())
		var killed *exec.ExitError
		if err := agent.Wait(); !errors.As(err, &killed) {
			t.Fatalf("the agent ended by itself: %v\n%s", err, log.String())
		}
		for attached(t, on.Cgroup()) != 0 { // links end when the kernel has closed the last file
			sleep(ctx, time.Millisecond)
			if ctx.Err() != nil {
				t.Fatal("a program is still attached")
			}
		}
	}
	if err := running.Wait(); err != nil {
		t.Error(err) // the workers compare all sums
	}
}

// Other traffic of the same cgroup is ignored and counted, and PS-lite's beside it
// is still counted right.
func TestForeignTraffic(t *testing.T) {
	program := hoststest.BuildPeer(t)
	on := hoststest.New(t, hosts.Config{Hosts: 1})
	w := watch(t, on.Cgroup())
	greeting := zmtp.NewGreeting(1, 0)
	request := append(greeting[:], zmtp.AppendReady(nil, "REQ", nil)...)
	for range 100 {
		request = append(request, 1, 0, 0, 5, 'h', 'e', 'l', 'l', 'o') // empty delimiter, then a frame
	}
	noise := make([]byte, 300_000)
	rand.Read(noise)
	streams := map[string][]byte{
		"HTTP":  bytes.Repeat([]byte("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"), 1000),
		"TLS":   append([]byte{0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3}, noise[:2000]...),
		"noise": noise, "ZMTP": request,
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for name, b := range streams {
		if err := sendOn(ctx, on.Host(0), b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	running, err := hosts.Job{
		Scheduler: hosts.Program{program}, Servers: []hosts.Program{{program}}, Hosts: on.Hosts(),
		Workers: []hosts.Program{{program, "--keys", "500"}},
	}.Run(ctx)
	if err != nil {
		t.Fatal(err, running)
	}
	counters := w.Agent.Agent().Counters
	require.NoError(t, w.stop())
	w.nothingLost(t, counters)
	ignored := uint64(0)
	for _, c := range counters {
		if c.Class == bpf.ClassIgnored.String() {
			ignored += c.Events
		}
	}
	if ignored == 0 {
		t.Errorf("nothing was ignored: %+v", counters)
	}
	if jobs := w.Jobs(); len(jobs) != 1 || len(jobs[0].Nodes) != 3 || jobs[0].DistinctKeys != 500 {
		t.Errorf("jobs %+v, want one of 3 nodes with 500 keys", jobs)
	}
}

// sendOn sends bytes from one process-less socket of the host to another,
// where the host's cgroup sees it: by a shell in that cgroup.
func sendOn(ctx context.Context, h *hosts.Host, b []byte) error {
	l, err := h.Listen(ctx, "tcp", h.IPv4.String()+":0")
	if err != nil {
		return err
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return err
	}
	read := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			read <- 0
			return
		}
		n, _ := io.Copy(io.Discard, c)
		c.Close()
		read <- n
	}()
	send := exec.CommandContext(ctx, "bash", "-c", "cat > /dev/tcp/"+h.IPv4.String()+"/"+port)
	send.Stdin = bytes.NewReader(b)
	if err := h.Run(ctx, send); err != nil {
		return err
	}
	if n := <-read; n != int64(len(b)) {
		return fmt.Errorf("%d of %d bytes came", n, len(b))
	}
	return nil
}

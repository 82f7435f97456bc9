package proxy_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/zmtp"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

func TestMain(m *testing.M) {
	hoststest.Main(m, map[string]func([]string) error{"nodes": costNodes, "splicing": splicing})
}

// peakMemory returns the most memory that a process has held, in bytes.
func peakMemory(t testing.TB, pid int) int { return statusOf(t, pid, "VmHWM:") }

// statusOf returns a size of a process, in bytes.
func statusOf(t testing.TB, pid int, what string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(status), what)
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	require.NoError(t, err)
	return n << 10
}

// A message of a GiB passes without being held.
func TestMessageOfOneGiB(t *testing.T) {
	require.Time(t)
	const size = 1 << 30
	whole := push(1, 0)
	head := whole[:len(whole)-2] // without the empty values
	piece := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{1}).Read(piece)

	sums := make(chan [32]byte, 1)
	addr := serve(t, func(c *net.TCPConn) {
		sum := sha256.New()
		if n, _ := io.Copy(sum, c); n > 0 { // not whoever only looks that somebody listens
			sums <- [32]byte(sum.Sum(nil))
		}
	})
	in, pids := psidecarsWith(t, addr)
	c := dial(t, in)
	want := sha256.New()
	w := io.MultiWriter(c, want)
	w.Write(greeting())
	w.Write(head)
	w.Write(zmtp.AppendHeader(nil, zmtp.FrameHeader(size, false)))
	for range size / len(piece) {
		if _, err := w.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	w.Write(push(2, 100))
	c.CloseWrite()
	if got := <-sums; got != [32]byte(want.Sum(nil)) {
		t.Error("other bytes came than were sent")
	}
	for _, pid := range pids {
		if n := peakMemory(t, pid); n > 100<<20 {
			t.Errorf("a proxy held %d MiB", n>>20)
		}
	}
}

// A receiver that stops reading makes the sender wait: neither process takes in
// what nobody takes out, on any of many connections.
func TestReceiversThatStopReading(t *testing.T) {
	release := make(chan struct{})
	addr := serve(t, func(c *net.TCPConn) { <-release })
	in, pids := psidecarsWith(t, addr)
	var sending sync.WaitGroup
	keys := make([]uint64, 200<<10) // large enough to be held for the codec
	for i := range keys {
		keys[i] = uint64(i) * 7919
	}
	meta := pslite.Meta{Request: true, Push: true, DataTypes: []pslite.DataType{pslite.Uint64, pslite.Float}}
	var message []byte
	for i, body := range [][]byte{meta.Append(nil, pslite.DMLC), pslite.AppendKeys(nil, keys), make([]byte, 4*len(keys))} {
		message = append(zmtp.AppendHeader(message, zmtp.FrameHeader(len(body), i < 2)), body...)
	}
	for range 20 {
		c := dial(t, in)
		c.Write(greeting())
		c.SetWriteDeadline(time.Now().Add(2 * time.Second))
		sending.Go(func() {
			for {
				if _, err := c.Write(message); err != nil {
					return
				}
			}
		})
	}
	sending.Wait()
	close(release)
	for _, pid := range pids {
		if n := peakMemory(t, pid); n > 400<<20 {
			t.Errorf("a proxy held %d MiB for 20 connections", n>>20)
		} else {
			t.Logf("a proxy held %d MiB for 20 connections", n>>20)
		}
	}
}

// state asks a proxy for its connections.
func state(t testing.TB, addr string) (s proxy.State) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	r, err := client.Get("http://" + addr + "/api/v1/connections")
	require.NoError(t, err)
	defer r.Body.Close()
	require.NoError(t, json.NewDecoder(r.Body).Decode(&s))
	return s
}

// With no descriptors left a proxy waits and counts, and goes on when there are
// some again.
func TestOutOfDescriptors(t *testing.T) {
	sh := require.Program(t, "sh")
	bin := hoststest.BuildJob(t, "cmd/psidecar")
	addr := serve(t, func(c *net.TCPConn) { io.Copy(struct{ io.Writer }{c}, c) })
	in, status := freeAddr(t, nearHost), freeAddr(t, nearHost)
	process(t, sh, "-c", `ulimit -n 40; exec "$@"`, "sh", bin, "proxy", "--mesh-port", "0", "--forward", in+"="+addr, "--http", status, "--log-level", "error")
	listening(t, status)
	listening(t, in)
	var conns []net.Conn
	ended := make(chan error, 100)
	for range cap(ended) {
		if c, err := net.Dial("tcp", in); err == nil {
			conns = append(conns, c)
			go func() { // nothing comes but the end
				_, err := c.Read(make([]byte, 1))
				ended <- err
			}()
		}
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Errorf("40 descriptors are enough for %d connections", len(conns))
	}
	for _, c := range conns {
		c.Close()
	}
	require.Await(t, "refusals for want of descriptors", func() error {
		if s := state(t, status); s.Errors["no_descriptors"]+s.Errors["too_many"] == 0 {
			return fmt.Errorf("errors %v", s.Errors)
		}
		return nil
	})
	recovers(t, in)
}

// recovers waits until bytes pass through the proxy at addr. Right after a load that it could not
// serve it still refuses connections (too_many), until those of the load have ended.
func recovers(t *testing.T, addr string) {
	t.Helper()
	require.Await(t, "the proxy recovers", func() error { return ping(addr) })
}

// ping sends bytes through the proxy at addr to a server that sends them back.
func ping(addr string) error {
	const patience = 30 * time.Second // on a machine that has other work
	c, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("ping")); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 4))
	return err
}

// Bytes of any kind, from many connections at both listeners, end connections
// and nothing else.
func TestFuzzedBytes(t *testing.T) {
	addr := serve(t, func(c *net.TCPConn) { io.Copy(struct{ io.Writer }{c}, c) })
	in, pids := psidecarsWith(t, addr)
	mesh := net.JoinHostPort(farHost, meshPort(t, pids[0]))
	for range 3 {
		require.NoError(t, ping(in))
	}
	lasting := 3 * time.Second
	if v := os.Getenv("PSIDECAR_SOAK"); v != "" {
		var err error
		if lasting, err = time.ParseDuration(v); err != nil {
			t.Fatalf("PSIDECAR_SOAK=%q: %v", v, err)
		}
	}
	end := time.Now().Add(lasting)
	var running sync.WaitGroup
	running.Go(func() { echoes(t, in, end) })
	var before []int
	running.Go(func() {
		time.Sleep(lasting / 4)
		before = memoryNow(t, pids)
	})
	var connections atomic.Int64
	for i := range 100 {
		running.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 1))
			for time.Now().Before(end) {
				c, err := net.Dial("tcp", []string{in, mesh}[i%2])
				if err != nil {
					continue
				}
				connections.Add(1)
				c.SetDeadline(time.Now().Add(time.Second))
				go io.Copy(io.Discard, c)
				c.Write(fuzzed(rng))
				if rng.IntN(2) == 0 {
					c.(*net.TCPConn).SetLinger(0)
				}
				c.Close()
			}
		})
	}
	running.Wait()
	recovers(t, in)
	after := memoryNow(t, pids)
	for i, pid := range pids {
		if n := peakMemory(t, pid); n > 400<<20 {
			t.Errorf("a proxy held %d MiB", n>>20)
		}
		// Until then buffers are still being made, for as many connections at a
		// time as the machine lets come.
		if lasting >= time.Minute && after[i] > before[i]+64<<20 {
			t.Errorf("a proxy grew from %d MiB to %d", before[i]>>20, after[i]>>20)
		}
		t.Logf("a proxy held %d MiB after a quarter of the time, %d at its end, %d at most", before[i]>>20, after[i]>>20, peakMemory(t, pid)>>20)
	}
	t.Logf("%d connections in %v", connections.Load(), lasting)
}

// memoryNow returns the memory that processes hold, in bytes.
func memoryNow(t testing.TB, pids []int) (all []int) {
	for _, pid := range pids {
		all = append(all, statusOf(t, pid, "VmRSS:"))
	}
	return all
}

// echoes is a job beside all that, on one connection until the end: every
// message comes back as it was.
func echoes(t *testing.T, in string, end time.Time) {
	c, err := net.Dial("tcp", in)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	message, answer := append(greeting(), push(1, 500)...), make([]byte, 0)
	var times []time.Duration
	for began := time.Now(); began.Before(end); began = time.Now() {
		c.SetDeadline(began.Add(time.Minute)) // the machine may be busy
		answer = append(answer[:0], message...)
		clear(answer)
		if _, err := c.Write(message); err != nil {
			t.Errorf("the job beside it, after %d messages: %v", len(times), err)
			return
		}
		if _, err := io.ReadFull(c, answer); err != nil || !bytes.Equal(answer, message) {
			t.Errorf("the job beside it, after %d messages: %v, or another message came back", len(times), err)
			return
		}
		times = append(times, time.Since(began))
		message = push(int32(len(times)), 500)
		time.Sleep(time.Millisecond)
	}
	slices.Sort(times)
	t.Logf("a job beside it: %d messages there and back, median %v, the slowest %v", len(times), times[len(times)/2], times[len(times)-1])
}

// fuzzed returns bytes that begin well and go wrong somewhere.
func fuzzed(rng *rand.Rand) []byte {
	b := greeting()
	for range rng.IntN(10) {
		b = append(b, push(int32(rng.IntN(100)), rng.IntN(5000))...)
	}
	if rng.IntN(3) == 0 {
		b = binary.BigEndian.AppendUint64([]byte("\xf1psidcar\x01"), rng.Uint64())
	}
	for range rng.IntN(20) {
		b[rng.IntN(len(b))] = byte(rng.Uint32())
	}
	return b[:rng.IntN(len(b)+1)]
}

// meshPort returns the mesh port that a proxy was started with.
func meshPort(t testing.TB, pid int) string {
	t.Helper()
	line := require.Value(os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)))(t)
	_, rest, _ := strings.Cut(string(line), "--mesh-port\x00")
	port, _, _ := strings.Cut(rest, "\x00")
	return port
}

package bpf

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"testing"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// BenchmarkCost measures by the kernel's own statistics what the programs take
// for a segment, over loopback, whose segments reach 64 KiB and more, while
// another process reads all that is copied: of what is sent, and of what is
// received, of which only metas of answers are copied.
func BenchmarkCost(b *testing.B) {
	m := newStreamMaker(23)
	tiny := m.job(0, 0)
	for range 400_000 {
		tiny = m.frame(tiny, m.answer(), false)
	}
	pushes := m.job(200_000, 4)
	large := m.job(64, 1<<20)
	foreign := append([]byte("POST / HTTP/1.1\r\n\r\n"), large...)
	for _, tc := range []struct {
		name     string
		stream   []byte
		messages int
		sampling Sampling
	}{
		{"answers of 22 bytes", tiny, 400_000, Sampling{}},
		{"pushes of one key", pushes, 200_000, Sampling{}},
		{"pushes of one key, 1 in 100", pushes, 200_000, Sampling{OneIn: 100}},
		{"pushes of 1 MiB", large, 64, Sampling{}},
		{"foreign", foreign, 0, Sampling{}},
	} {
		b.Run("egress/"+tc.name, func(b *testing.B) {
			n := hoststest.New(b, hosts.Config{Hosts: 1})
			h := n.Host(0)
			c := openTest(b, Options{MeasureCost: true, Sampling: tc.sampling})
			require.NoError(b, c.Attach(h.Cgroup()))
			counter := countKeys(c)
			for b.Loop() {
				x := startTransfer(b, h, h, h.IPv4.String(), 1<<20)
				x.send(tc.stream)
				x.finish()
			}
			counter.stop(b)
			reportCost(b, c, Egress, tc.messages*b.N)
		})
		b.Run("ingress/"+tc.name, func(b *testing.B) {
			n := hoststest.New(b, hosts.Config{Hosts: 1})
			h := n.Host(0)
			c := openTest(b, Options{MeasureCost: true, Sampling: tc.sampling, Ingress: IngressMetas, IngressLoopback: true})
			require.NoError(b, c.Attach(h.Cgroup()))
			counter := countKeys(c)
			for b.Loop() {
				sendTo(b, h, tc.stream)
			}
			counter.stop(b)
			reportCost(b, c, Ingress, tc.messages*b.N)
		})
	}
}

// answer is the meta of a push's answer as dmlc writes it, 22 bytes.
func (m *streamMaker) answer() []byte {
	return []byte{8, 0, 0x20, 0, 0x28, 1, 0x30, 0, 0x38, 0, 0x40, 0x80, 0x80, 1, 0x50, 0, 0x58, 0, 0x60, 0, 0x68, 0}
}

// sendTo sends the stream to a process of the host.
func sendTo(b *testing.B, h *hosts.Host, stream []byte) {
	l := require.Value(h.Listen(b.Context(), "tcp", net.JoinHostPort(h.IPv4.String(), "0")))(b)
	defer l.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), receiverVariable+"="+l.Addr().String())
	process := require.Value(h.Start(cmd))(b)
	conn, err := l.Accept()
	require.NoError(b, err)
	for len(stream) > 0 && err == nil {
		n := min(len(stream), 1<<20)
		_, err = conn.Write(stream[:n])
		stream = stream[n:]
	}
	require.NoError(b, errors.Join(err, conn.Close(), process.Wait(b.Context())))
}

func reportCost(b *testing.B, c *Capture, d Direction, messages int) {
	stats := require.Value(c.ProgramStats())(b)
	counts := require.Value(c.Counts())(b)
	ns := float64(stats[d].RunTime.Nanoseconds())
	segments := float64(counts[ReasonSegments].Events)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ns/segments, "ns/segment")
	b.ReportMetric(float64(counts[ReasonSegments].Bytes)/segments, "B/segment")
	b.ReportMetric(ns/float64(counts[ReasonSegments].Bytes)*1024, "ns/KiB")
	if messages > 0 {
		b.ReportMetric(ns/float64(messages), "ns/message")
	}
	b.ReportMetric(float64(counts.Lost().Events), "lost")
	b.ReportMetric(float64(counts[ReasonUntimed].Events), "untimed")
}

package hosts_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// random returns bytes that do not repeat.
func random(size int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	b := make([]byte, size)
	r.Read(b)
	return b
}

// transfer sends b over the connection, in segments where size is not 0, and
// checks that it arrives whole.
func transfer(t testing.TB, from, to *net.TCPConn, b []byte, size int) {
	t.Helper()
	var g errgroup.Group
	g.Go(func() error {
		defer from.CloseWrite()
		if size != 0 {
			return hoststest.WriteSegments(from, b, size)
		}
		_, err := from.Write(b)
		return err
	})
	got, err := io.ReadAll(to)
	require.NoError(t, errors.Join(err, g.Wait()))
	if !bytes.Equal(got, b) {
		t.Fatalf("%d bytes arrived changed as %d", len(b), len(got))
	}
}

// tcpInfo is what the kernel knows about the connection.
func tcpInfo(t *testing.T, c *net.TCPConn) (info *unix.TCPInfo) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) {
			info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		}), err)
	}
	require.NoError(t, err)
	return info
}

func TestTrafficByPairsIsExact(t *testing.T) {
	n := hoststest.New(t, hosts.Config{Hosts: 3, Pairs: true})
	want := make(map[[2]int]uint64)
	send := func(a, b, size int, at netip.Addr) {
		from, to := pair(t, n.Host(a), n.Host(b), at)
		transfer(t, from, to, random(size), 0)
		// A busy machine may send a segment again without need.
		want[[2]int{a, b}] += uint64(size) + tcpInfo(t, from).Bytes_retrans
	}
	send(0, 1, 1, n.Host(1).IPv4)
	send(0, 2, 3_000_000, n.Host(2).IPv6)
	send(2, 0, 200_000, n.Host(0).IPv4)
	send(2, 0, 70_000, n.Host(0).IPv6)
	send(1, 1, 500_000, n.Host(1).IPv4) // stays on the host

	got := require.Value(n.Traffic())(t)
	for a := range got {
		var bytes uint64
		for b, traffic := range got[a] {
			bytes += traffic.Bytes
			size := want[[2]int{a, b}]
			if a == b {
				size = 0
			}
			if traffic.Payload != size {
				t.Errorf("host %d to %d: payload %d, want %d", a, b, traffic.Payload, size)
			}
			if traffic.Bytes < traffic.Payload+40*traffic.Packets {
				t.Errorf("host %d to %d: %d bytes for %d packets with payload %d", a, b, traffic.Bytes, traffic.Packets, traffic.Payload)
			}
		}
		counters := require.Value(n.Host(a).Counters())(t)
		// The link's counter has ARP and neighbour discovery in addition.
		if extra := counters.SentBytes - bytes; counters.SentBytes < bytes || extra > 5000 {
			t.Errorf("host %d: link counted %d bytes, pairs %d", a, counters.SentBytes, bytes)
		}
	}
}

func TestTrafficNeedsPairs(t *testing.T) {
	n := hoststest.New(t, hosts.Config{Hosts: 1})
	if _, err := n.Traffic(); err == nil {
		t.Error("no error without Config.Pairs")
	}
}

func TestCutAndHeal(t *testing.T) {
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	from, to := pair(t, n.Host(0), n.Host(1), n.Host(1).IPv4)
	require.NoError(t, n.Host(1).Cut())
	require.Value(from.Write([]byte("held")))(t)
	to.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if k, err := to.Read(make([]byte, 4)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes over a cut link: %v", k, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if c, err := n.Host(0).Dial(ctx, "tcp", to.LocalAddr().String()); err == nil {
		c.Close()
		t.Error("connected over a cut link")
	}
	require.NoError(t, n.Host(1).Heal())
	to.SetReadDeadline(time.Now().Add(time.Minute))
	got := make([]byte, 4)
	if _, err := io.ReadFull(to, got); err != nil || string(got) != "held" {
		t.Errorf("after healing: %q, %v", got, err)
	}
}

func TestFaultsLoseAndRepeatPackets(t *testing.T) {
	require.BPF(t)
	n := hoststest.New(t, hosts.Config{Hosts: 2, Pairs: true})
	for i, faults := range []hoststest.Faults{{Drop: 0.05, Seed: 1}, {Duplicate: 0.2, Seed: 2}, {Drop: 0.02, Duplicate: 0.05, Seed: 3}} {
		t.Run(fmt.Sprintf("%+v", faults), func(t *testing.T) {
			a, b := n.Host(i%2), n.Host(1-i%2)
			require.NoError(t, hoststest.SetSegments(n, 1460))
			injected := hoststest.Inject(t, a, faults)
			from, to := pair(t, a, b, b.IPv4)
			transfer(t, from, to, random(3_000_000), 0)
			info, counts := tcpInfo(t, from), injected.Counts(t)
			t.Logf("%+v, %d segments sent again", counts, info.Total_retrans)
			if counts.Packets < 2000 {
				t.Errorf("%d packets for 3 MB in single segments", counts.Packets)
			}
			checkShare(t, "lost", counts.Dropped, counts.Packets, faults.Drop)
			checkShare(t, "repeated", counts.Duplicated, counts.Packets, faults.Duplicate)
			if faults.Drop > 0 && info.Total_retrans == 0 {
				t.Error("TCP sent nothing again")
			}
		})
	}
}

// checkShare wants the share within half of what was asked for: more than ten
// standard deviations away with these packets.
func checkShare(t *testing.T, what string, part, whole uint64, want float64) {
	t.Helper()
	if got := float64(part) / float64(whole); got < want/2 || got > want*3/2 {
		t.Errorf("%s: %d of %d packets, want a share of %g", what, part, whole, want)
	}
}

func TestSegmentsAreAsSmallAsAskedFor(t *testing.T) {
	n := hoststest.New(t, hosts.Config{Hosts: 2})
	a, b := n.Host(0), n.Host(1)
	for _, at := range []netip.Addr{b.IPv4, b.IPv6} {
		from, to := pair(t, a, b, at)
		transfer(t, from, to, random(5000), 1)
		if info := tcpInfo(t, from); info.Data_segs_out < 5000 {
			t.Errorf("at %s: 5000 bytes left in %d segments, want one each", at, info.Data_segs_out)
		}
	}
	require.NoError(t, hoststest.SetSegments(n, 48))
	for _, at := range []netip.Addr{b.IPv4, b.IPv6} {
		from, to := pair(t, a, b, at)
		transfer(t, from, to, random(48_000), 0)
		if info := tcpInfo(t, from); info.Data_segs_out < 1000 {
			t.Errorf("at %s: 48000 bytes left in %d segments of at most 48", at, info.Data_segs_out)
		}
	}
	require.NoError(t, hoststest.SetSegments(n, 0))
	from, to := pair(t, a, b, b.IPv4)
	transfer(t, from, to, random(480_000), 0)
	if info := tcpInfo(t, from); info.Data_segs_out > 1000 {
		t.Errorf("480000 bytes left in %d segments without a bound", info.Data_segs_out)
	}
}

func TestSmallMTU(t *testing.T) {
	n := hoststest.New(t, hosts.Config{Hosts: 2, MTU: 200})
	if n.Host(1).IPv6.IsValid() {
		t.Error("an IPv6 address with an MTU of 200")
	}
	from, to := pair(t, n.Host(0), n.Host(1), n.Host(1).IPv4)
	transfer(t, from, to, random(100_000), 0)
	if info := tcpInfo(t, from); info.Snd_mss > 160 {
		t.Errorf("segments of %d bytes with an MTU of 200", info.Snd_mss)
	}
}

package watch

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/hoststest"
	"github.com/psidecar/psidecar/test/require"
)

// Packets of 128 KiB and more, of which only the first bytes are linear, are
// followed as others are: the agent's account equals the workers'.
func TestPacketsOf128KiB(t *testing.T) {
	program := hoststest.BuildPeer(t)
	for name, ipv6 := range map[string]bool{"IPv4": false, "IPv6": true} {
		for kind, args := range map[string][]string{
			"scalar": {"--keys", "200000", "--space", "200000"},
			"lens":   {"--keys", "60000", "--space", "60700", "--shift", "700", "--lens"},
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				net := hoststest.New(t, hosts.Config{Hosts: 1})
				if err := hoststest.SetLoopbackPackets(net.Host(0), 256<<10); err != nil {
					require.Missing(t, "%v", err)
				}
				w := watch(t, net.Cgroup())
				large := countPackets(t, net.Cgroup(), 128<<10)
				watchPeers(t, w, net.Hosts(), ipv6, program, 2, append([]string{"--rounds", "5"}, args...)...)
				if n := large(); n == 0 {
					t.Error("no packet of 128 KiB was sent")
				} else {
					t.Logf("%d packets of 128 KiB or more", n)
				}
			})
		}
	}
}

// countPackets counts the packets of at least a given size that the cgroup's
// processes send, where the capture program sees them too.
func countPackets(t *testing.T, cgroup string, size int32) func() uint64 {
	t.Helper()
	packets := require.Value(ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1}))(t)
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupSKB, License: "MIT", Instructions: asm.Instructions{
		asm.LoadMem(asm.R1, asm.R1, 0, asm.Word), // len
		asm.JLT.Imm(asm.R1, size, "pass"),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, packets.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("pass"),
		asm.Return(),
	}})
	if err != nil {
		t.Fatal(errors.Join(err, packets.Close()))
	}
	attached, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupInetEgress, Program: program})
	if err != nil {
		t.Fatal(errors.Join(err, program.Close(), packets.Close()))
	}
	t.Cleanup(func() {
		if err := errors.Join(attached.Close(), program.Close(), packets.Close()); err != nil {
			t.Error(err)
		}
	})
	return func() (n uint64) {
		t.Helper()
		require.NoError(t, packets.Lookup(uint32(0), &n))
		return n
	}
}

package hoststest

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/psidecar/psidecar/internal/hosts"
	"github.com/psidecar/psidecar/test/require"
)

// Faults are what happens at the switch to IP packets that a host sends.
type Faults struct {
	Drop      float64 // fraction of packets that is lost, 0 to 1
	Duplicate float64 // fraction of packets that arrives twice, 0 to 1
	// Seed starts the random sequence. The same seed and the same packets in the same order
	// have the same losses.
	Seed uint64
}

// FaultCounts count the packets since the injection.
type FaultCounts struct {
	Packets, Dropped, Duplicated uint64
}

// faultState is the value of the BPF map that the program works on. Its layout is that of the
// offsets below.
type faultState struct {
	Random    uint64 // state of the random sequence
	Counts    FaultCounts
	Drop      uint32 // of 2^32
	Duplicate uint32 // of 2^32
}

// Offsets into faultState.
const (
	faultRandom     = 0
	faultPackets    = 8
	faultDropped    = 16
	faultDuplicated = 24
	faultDrop       = 32
	faultDuplicate  = 36
	faultSize       = 40
)

// Offsets into struct __sk_buff, and what is found there: see package hosts.
const (
	skbMark     = 8
	skbProtocol = 16
	skbIfindex  = 40

	etherIPv4 = 0x0008
	etherIPv6 = 0xdd86
)

// Verdicts: continue with the next program, or drop the packet.
const (
	actNext = -1 // TC_ACT_UNSPEC
	actDrop = 2  // TC_ACT_SHOT
)

// faultName is the name of the program and its map, as bpftool lists them.
const faultName = "psd_faults"

// Injected are the faults of a host's packets.
type Injected struct{ state *ebpf.Map }

// Inject makes the switch lose and duplicate packets that the host sends, until the test ends;
// no faults are nothing to do. For losses in both directions, inject them on both hosts. A packet
// that is still to be divided into segments (up to 64 KiB; SetSegments makes them small) is lost
// or duplicated as a whole.
func Inject(t testing.TB, h *hosts.Host, f Faults) *Injected {
	t.Helper()
	if f.Drop == 0 && f.Duplicate == 0 {
		return nil
	}
	state, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: faultName, Type: ebpf.Array,
		KeySize: 4, ValueSize: faultSize, MaxEntries: 1,
	})
	if err != nil {
		t.Fatalf("making the BPF map for faults: %v", err)
	}
	t.Cleanup(func() { state.Close() })
	start := faultState{Random: f.Seed, Drop: ofWord(f.Drop), Duplicate: ofWord(f.Duplicate)}
	if err := state.Put(uint32(0), start); err != nil {
		t.Fatalf("setting the faults: %v", err)
	}
	detach := require.Value(h.Attach(faultName, faultProgram(state)))(t)
	t.Cleanup(func() {
		if err := detach(); err != nil {
			t.Error(err)
		}
	})
	return &Injected{state}
}

// Counts returns the counts since the injection.
func (i *Injected) Counts(t testing.TB) FaultCounts {
	t.Helper()
	var state faultState
	if err := i.state.Lookup(uint32(0), &state); err != nil {
		t.Fatalf("reading the counts of lost packets: %v", err)
	}
	return state.Counts
}

// ofWord converts a fraction to a fraction of 2^32. The whole is one less, to fit.
func ofWord(share float64) uint32 { return uint32(min(share*(1<<32), 1<<32-1)) }

// faultProgram draws two random numbers for each IP packet: for its loss and, if it is not
// lost, for its duplication. The generator is Knuth's MMIX linear congruential one, of which
// the high half is used. Two packets at the same time on two processors may draw the same
// number, which does no harm. Copies are marked and pass.
func faultProgram(state *ebpf.Map) asm.Instructions {
	const ingress = 1 // BPF_F_INGRESS
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R0, asm.R6, skbMark, asm.Word),
		asm.JEq.Imm(asm.R0, hosts.ClonedMark, "pass"),
		asm.LoadMem(asm.R0, asm.R6, skbProtocol, asm.Word),
		asm.JEq.Imm(asm.R0, etherIPv4, "ip"),
		asm.JNE.Imm(asm.R0, etherIPv6, "pass"),
		asm.StoreImm(asm.R10, -8, 0, asm.Word).WithSymbol("ip"),
		asm.LoadMapPtr(asm.R1, state.FD()),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.Mov.Reg(asm.R7, asm.R0),
	}
	code = append(code, count(faultPackets)...)
	code = append(code, draw()...)
	code = append(code,
		asm.LoadMem(asm.R2, asm.R7, faultDrop, asm.Word),
		asm.JGE.Reg(asm.R1, asm.R2, "kept"),
	)
	code = append(code, count(faultDropped)...)
	code = append(code, asm.Mov.Imm(asm.R0, actDrop), asm.Return())
	again := draw()
	again[0] = again[0].WithSymbol("kept")
	code = append(code, again...)
	code = append(code,
		asm.LoadMem(asm.R2, asm.R7, faultDuplicate, asm.Word),
		asm.JGE.Reg(asm.R1, asm.R2, "pass"),
	)
	code = append(code, count(faultDuplicated)...)
	return append(code,
		asm.Mov.Imm(asm.R1, hosts.ClonedMark),
		asm.StoreMem(asm.R6, skbMark, asm.R1, asm.Word),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.LoadMem(asm.R2, asm.R6, skbIfindex, asm.Word),
		asm.Mov.Imm(asm.R3, ingress),
		// The clone goes through the port again, where its mark keeps it from being duplicated
		// without end.
		asm.FnCloneRedirect.Call(),
		asm.Mov.Imm(asm.R0, actNext).WithSymbol("pass"),
		asm.Return(),
	)
}

// draw leaves the next random 32 bits in R1.
func draw() asm.Instructions {
	return asm.Instructions{
		asm.LoadMem(asm.R1, asm.R7, faultRandom, asm.DWord),
		asm.LoadImm(asm.R2, 6364136223846793005, asm.DWord),
		asm.Mul.Reg(asm.R1, asm.R2),
		asm.LoadImm(asm.R2, 1442695040888963407, asm.DWord),
		asm.Add.Reg(asm.R1, asm.R2),
		asm.StoreMem(asm.R7, faultRandom, asm.R1, asm.DWord),
		asm.RSh.Imm(asm.R1, 32),
	}
}

// count adds one to a counter of the state at R7, atomically.
func count(offset int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R2, asm.R7),
		asm.Add.Imm(asm.R2, offset),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R2, asm.R1, asm.DWord),
	}
}

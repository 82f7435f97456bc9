package hosts

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Traffic is what one host has sent to another since the Net was made.
type Traffic struct {
	Packets uint64 // a packet that is still to be divided into segments counts once
	Bytes   uint64 // whole frames with their headers
	Payload uint64 // TCP payload in them, including retransmissions
}

// Traffic returns what each host has sent to each other, [from][to] by index. A host's traffic
// to itself does not reach the switch. It needs Config.Pairs. Packets are counted when they
// reach the switch, before any are lost there.
func (n *Net) Traffic() ([][]Traffic, error) {
	if n.pairs == nil {
		return nil, errors.New("traffic by pairs of hosts is not counted: set Config.Pairs")
	}
	matrix := make([][]Traffic, len(n.hosts))
	for from := range matrix {
		matrix[from] = make([]Traffic, len(n.hosts))
		for to := range matrix[from] {
			key := uint32(from*len(n.hosts) + to)
			if err := n.pairs.counts.Lookup(key, &matrix[from][to]); err != nil {
				return nil, fmt.Errorf("reading the traffic of host %d to %d: %w", from, to, err)
			}
		}
	}
	return matrix, nil
}

// A pairCounter counts traffic by pairs of hosts in a BPF array; the entry of a pair is
// from*hosts + to. Each host's port has a program of its own, with from as a constant.
type pairCounter struct {
	hosts    int
	counts   *ebpf.Map
	programs []*ebpf.Program
}

// newPairCounter makes the array. Programs are loaded by attach.
func newPairCounter(hosts int) (*pairCounter, error) {
	counts, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "psd_traffic", Type: ebpf.Array,
		KeySize: 4, ValueSize: 24, MaxEntries: uint32(hosts * hosts),
	})
	if err != nil {
		return nil, fmt.Errorf("making the BPF map for traffic by pairs: %w", err)
	}
	return &pairCounter{hosts: hosts, counts: counts}, nil
}

// attach counts what a host sends from now on.
func (c *pairCounter) attach(h *Host) error {
	prog, err := load("psd_traffic", c.program(h.Index))
	if err != nil {
		return err
	}
	c.programs = append(c.programs, prog)
	return h.attach(prog, "psd_traffic", priorityCount)
}

// close releases map and programs; the ports go with the switch.
func (c *pairCounter) close() error {
	errs := []error{c.counts.Close()}
	for _, p := range c.programs {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// Registers: R6 has the packet, R7 its length, R8 the offset of what follows the IP header, R9
// the receiver's number, and R0 the IP header's protocol after parseIPv4 and parseIPv6. On the
// stack:
const (
	stackIP      = -40 // up to 40 bytes of IP header
	stackKey     = -48
	stackScratch = -56

	ethernet = 14 // bytes of Ethernet header before the IP header
)

// program counts a packet of host from if its destination is one of the hosts, whose numbers
// are the last 16 bits of their addresses.
func (c *pairCounter) program(from int) asm.Instructions {
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R7, asm.R6, skbLen, asm.Word),
		asm.LoadMem(asm.R0, asm.R6, skbMark, asm.Word),
		asm.JEq.Imm(asm.R0, ClonedMark, "out"),
		asm.LoadMem(asm.R0, asm.R6, skbProtocol, asm.Word),
		asm.JEq.Imm(asm.R0, etherIPv6, "ipv6"),
		asm.JNE.Imm(asm.R0, etherIPv4, "out"),
	}
	code = append(code, parseIPv4()...)
	code = append(code, asm.Ja.Label("payload"))
	code = append(code, parseIPv6()...)
	code = append(code, tcpPayload()...)
	return append(code, c.countPacket(from)...)
}

// parseIPv4 loads 20 bytes of header: the header's length in words in the low half of byte 0,
// the protocol in byte 9, the receiver in bytes 16 to 19. Packets to other networks are not
// counted.
func parseIPv4() asm.Instructions {
	code := asm.Instructions{asm.Mov.Imm(asm.R2, ethernet)}
	code = append(code, loadPacket(stackIP, 20)...)
	return append(code,
		asm.LoadMem(asm.R1, asm.R10, stackIP+16, asm.Byte),
		asm.JNE.Imm(asm.R1, 198, "out"),
		asm.LoadMem(asm.R1, asm.R10, stackIP+17, asm.Byte),
		asm.JNE.Imm(asm.R1, 18, "out"),
		asm.LoadMem(asm.R9, asm.R10, stackIP+18, asm.Byte),
		asm.LSh.Imm(asm.R9, 8),
		asm.LoadMem(asm.R1, asm.R10, stackIP+19, asm.Byte),
		asm.Or.Reg(asm.R9, asm.R1),
		asm.LoadMem(asm.R8, asm.R10, stackIP, asm.Byte),
		asm.And.Imm(asm.R8, 0x0f),
		asm.LSh.Imm(asm.R8, 2),
		asm.Add.Imm(asm.R8, ethernet),
		asm.LoadMem(asm.R0, asm.R10, stackIP+9, asm.Byte),
	)
}

// parseIPv6 loads 40 bytes of header: the protocol in byte 6, the receiver in the last 16.
// Packets with extension headers count without payload.
func parseIPv6() asm.Instructions {
	code := asm.Instructions{asm.Mov.Imm(asm.R2, ethernet).WithSymbol("ipv6")}
	code = append(code, loadPacket(stackIP, 40)...)
	return append(code,
		asm.LoadMem(asm.R1, asm.R10, stackIP+24, asm.Word),
		asm.HostTo(asm.BE, asm.R1, asm.Word),
		asm.JNE.Imm(asm.R1, 0x20010002, "out"),
		asm.LoadMem(asm.R9, asm.R10, stackIP+38, asm.Byte),
		asm.LSh.Imm(asm.R9, 8),
		asm.LoadMem(asm.R1, asm.R10, stackIP+39, asm.Byte),
		asm.Or.Reg(asm.R9, asm.R1),
		asm.Mov.Imm(asm.R8, ethernet+40),
		asm.LoadMem(asm.R0, asm.R10, stackIP+6, asm.Byte),
	)
}

// tcpPayload leaves the number of bytes of TCP payload in R8: what follows the TCP header,
// whose length in words is in the high half of its byte 12.
func tcpPayload() asm.Instructions {
	const tcp = 6
	code := asm.Instructions{
		asm.JEq.Imm(asm.R0, tcp, "tcp").WithSymbol("payload"),
		asm.Mov.Imm(asm.R8, 0),
		asm.Ja.Label("add"),
		asm.Mov.Reg(asm.R2, asm.R8).WithSymbol("tcp"),
		asm.Add.Imm(asm.R2, 12),
	}
	code = append(code, loadPacket(stackScratch, 1)...)
	return append(code,
		asm.LoadMem(asm.R1, asm.R10, stackScratch, asm.Byte),
		asm.RSh.Imm(asm.R1, 4),
		asm.LSh.Imm(asm.R1, 2),
		asm.Add.Reg(asm.R8, asm.R1),
		asm.Mov.Reg(asm.R1, asm.R7),
		asm.Sub.Reg(asm.R1, asm.R8),
		asm.Mov.Reg(asm.R8, asm.R1),
	)
}

// countPacket adds the packet to the entry of its pair.
func (c *pairCounter) countPacket(from int) asm.Instructions {
	// The entry has three counters of 8 bytes, as Traffic does. Additions are atomic, since
	// packets of a host may arrive on several processors.
	one, bytes, payload := asm.R1, asm.R7, asm.R8
	return asm.Instructions{
		asm.Sub.Imm(asm.R9, 1).WithSymbol("add"),
		asm.JGE.Imm(asm.R9, int32(c.hosts), "out"),
		asm.Add.Imm(asm.R9, int32(from*c.hosts)),
		asm.StoreMem(asm.R10, stackKey, asm.R9, asm.Word),
		asm.LoadMapPtr(asm.R1, c.counts.FD()),
		asm.Mov.Reg(asm.R2, asm.R10),
		asm.Add.Imm(asm.R2, stackKey),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(one, 1),
		asm.StoreXAdd(asm.R0, one, asm.DWord),
		asm.Add.Imm(asm.R0, 8),
		asm.StoreXAdd(asm.R0, bytes, asm.DWord),
		asm.Add.Imm(asm.R0, 8),
		asm.StoreXAdd(asm.R0, payload, asm.DWord),
		asm.Mov.Imm(asm.R0, actNext).WithSymbol("out"),
		asm.Return(),
	}
}

// loadPacket copies size bytes of the packet to the stack, from the offset in R2, and jumps to
// out if the packet is shorter.
func loadPacket(stack, size int32) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Reg(asm.R3, asm.R10),
		asm.Add.Imm(asm.R3, stack),
		asm.Mov.Imm(asm.R4, size),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "out"),
	}
}

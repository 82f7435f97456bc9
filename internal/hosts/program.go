package hosts

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Offsets into struct __sk_buff, which are part of the kernel's ABI.
const (
	skbLen      = 0
	skbMark     = 8
	skbProtocol = 16
)

// actNext is the verdict of a program at the switch's port: continue with the next one.
const actNext = -1 // TC_ACT_UNSPEC

// ClonedMark marks a packet that is the copy of another, so that it is not
// counted and not copied again. Packets lose it when they reach a host.
const ClonedMark = 0x70736964

// Ethernet types as skb->protocol has them, in network order.
const (
	etherIPv4 = 0x0008
	etherIPv6 = 0xdd86
)

// Priorities of the programs at a port: packets are counted before they may be lost.
const (
	priorityCount = 1
	priorityOther = 2
)

// load loads a program for packets that enter a port of the switch.
func load(name string, code asm.Instructions) (*ebpf.Program, error) {
	// Kernels before 5.11 count BPF memory towards this limit.
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raising the memlock limit for BPF: %w", err)
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         name,
		Type:         ebpf.SchedCLS,
		Instructions: code,
		License:      "Apache-2.0",
	})
	if err != nil {
		return nil, fmt.Errorf("loading the BPF program %s: %w", name, err)
	}
	return prog, nil
}

// Attach runs a program on every packet that the host sends, when it reaches the switch and has
// been counted, until detach is called. A host can have one.
func (h *Host) Attach(name string, code asm.Instructions) (detach func() error, err error) {
	prog, err := load(name, code)
	if err != nil {
		return nil, err
	}
	if err := h.attach(prog, name, priorityOther); err != nil {
		return nil, errors.Join(err, prog.Close())
	}
	return func() error {
		err := h.net.nl.FilterDel(h.filter(prog.FD(), name, priorityOther))
		if err != nil {
			err = fmt.Errorf("removing the BPF program %s from the port of host %s: %w", name, h.Name, err)
		}
		return errors.Join(err, prog.Close())
	}, nil
}

// attach runs a program at a host's port. The port keeps the program.
func (h *Host) attach(prog *ebpf.Program, name string, priority uint16) error {
	err := h.net.nl.FilterReplace(h.filter(prog.FD(), name, priority))
	if err != nil {
		return fmt.Errorf("attaching the BPF program %s to the port of host %s: %w", name, h.Name, err)
	}
	return nil
}

// filter describes a program at the switch's end of the host's link. Handle and priority
// identify it, and FilterReplace replaces one with the same.
func (h *Host) filter(fd int, name string, priority uint16) *netlink.BpfFilter {
	return &netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: h.port.Attrs().Index,
			Parent:    netlink.HANDLE_MIN_INGRESS,
			Handle:    1,
			Protocol:  unix.ETH_P_ALL,
			Priority:  priority,
		},
		Fd:           fd,
		Name:         name,
		DirectAction: true,
	}
}

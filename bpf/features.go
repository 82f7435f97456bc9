package bpf

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
)

// feature is something that the kernel is probed for, by loading a program or creating a map
// that uses it. Release numbers alone prove nothing: features are backported, and left out of
// builds.
type feature struct {
	name string // key in Facts.Features
	// what names it in reports, since is the release that introduced it, and needed says that
	// the agent cannot watch without it.
	what   string
	since  string
	needed bool
	// without says what still works if it is missing.
	without string
	ask     func() error
}

// helper returns a probe for a helper function in programs of a type.
func helper(kind ebpf.ProgramType, fn asm.BuiltinFunc) func() error {
	return func() error { return features.HaveProgramHelper(kind, fn) }
}

// program returns a probe for a type of programs.
func program(kind ebpf.ProgramType) func() error {
	return func() error { return features.HaveProgramType(kind) }
}

// What still works without a feature, for those that share the answer.
const (
	noWatching = "psidecar decode (from a tcpdump capture), partition, score, hash and simulate"
	noProxying = "watching and planning; the proxy cannot intercept connections"
)

// kernelFeatures returns all features that the programs use: those of the capture programs
// first, then those of the redirecting programs.
func kernelFeatures() []feature {
	return []feature{
		{"cgroup_skb", "cgroup_skb programs", "4.10", true, noWatching, program(ebpf.CGroupSKB)},
		{"socket_cookie", "the helper bpf_get_socket_cookie in cgroup_skb programs", "4.12", true, noWatching,
			helper(ebpf.CGroupSKB, asm.FnGetSocketCookie)},
		{"tcp_sock", "the helper bpf_tcp_sock in cgroup_skb programs", "5.1", true, noWatching,
			helper(ebpf.CGroupSKB, asm.FnTcpSock)},
		{"bounded_loops", "bounded loops in BPF programs", "5.3", true, noWatching, features.HaveBoundedLoops},
		{"ringbuf", "BPF ring buffers", "5.8", true, noWatching,
			func() error {
				return errors.Join(features.HaveMapType(ebpf.RingBuf), helper(ebpf.CGroupSKB, asm.FnRingbufOutput)())
			}},
		{"atomics", "atomic compare-and-exchange in BPF programs", "5.12", true, noWatching, haveCompareExchange},
		{"sock_ops", "sock_ops programs", "4.13", false, noProxying, program(ebpf.SockOps)},
		{"connect", "cgroup/connect4 and connect6 programs", "4.17", false, noProxying, program(ebpf.CGroupSockAddr)},
		{"sockopt", "cgroup/getsockopt programs", "5.3", false, noProxying, program(ebpf.CGroupSockopt)},
		{"getpeername", "cgroup/getpeername4 and getpeername6 programs", "5.8", false, noProxying, haveGetpeername},
		{"sk_lookup", "the helper bpf_sk_lookup_tcp in connect programs", "4.20", false, noProxying,
			helper(ebpf.CGroupSockAddr, asm.FnSkLookupTcp)},
		{"netns_cookie", "the helper bpf_get_netns_cookie in connect and getsockopt programs", "5.15", false, noProxying,
			func() error {
				return errors.Join(helper(ebpf.CGroupSockAddr, asm.FnGetNetnsCookie)(), helper(ebpf.CGroupSockopt, asm.FnGetNetnsCookie)())
			}},
		{"lpm_trie", "maps of address prefixes", "4.11", false, noProxying,
			func() error { return features.HaveMapType(ebpf.LPMTrie) }},
	}
}

// haveCompareExchange loads a program with an atomic compare-and-exchange, by which the capture
// programs claim streams and buffers. Package features has no probe for it.
func haveCompareExchange() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:       ebpf.CGroupSKB,
		AttachType: ebpf.AttachCGroupInetEgress,
		License:    "Apache-2.0",
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R0, 0),
			asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
			asm.Mov.Imm(asm.R1, 1),
			asm.CmpXchg.Mem(asm.RFP, asm.R1, asm.DWord, -8),
			asm.Mov.Imm(asm.R0, 1),
			asm.Return(),
		},
	})
	return closed(p, err)
}

// haveGetpeername loads a minimal program for the getpeername hook. The program type is older
// than the hook, so probing the type would not do.
func haveGetpeername() error {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:         ebpf.CGroupSockAddr,
		AttachType:   ebpf.AttachCgroupInet4GetPeername,
		License:      "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	return closed(p, err)
}

// closed closes a program that was loaded as a probe. A program that the verifier rejects
// counts as not supported; other errors, such as missing rights, leave the question open.
func closed(p *ebpf.Program, err error) error {
	if err != nil {
		var verifier *ebpf.VerifierError
		if errors.As(err, &verifier) || errors.Is(err, ebpf.ErrNotSupported) {
			return fmt.Errorf("%w: %w", ebpf.ErrNotSupported, err)
		}
		return err
	}
	// It was only to be accepted by the verifier; it is never attached.
	return p.Close()
}

// askKernel probes all features and returns the answers for Facts.Features.
func askKernel() map[string]string {
	answers := map[string]string{}
	for _, f := range kernelFeatures() {
		// An empty answer is a yes; a name that is absent was not asked, as in facts that an
		// older version has recorded.
		answers[f.name] = ""
		if err := f.ask(); err != nil {
			answers[f.name] = err.Error()
		}
	}
	return answers
}

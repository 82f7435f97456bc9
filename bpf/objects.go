package bpf

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
)

// objects are the programs of one of the two builds in capture.c, and the
// maps they share.
type objects struct {
	egress, ingress                       *ebpf.Program
	settings, streams, foreigners, events *ebpf.Map
	counts                                *ebpf.Map
	collection                            *ebpf.Collection
}

// chooseBuild names the build that the kernel can run: with bpf_loop from
// Linux 5.17 on, with tail calls before.
func chooseBuild() (string, error) {
	err := features.HaveProgramHelper(ebpf.CGroupSKB, asm.FnLoop)
	if errors.Is(err, ebpf.ErrNotSupported) {
		return "follow", nil
	}
	if err != nil {
		return "", fmt.Errorf("asking the kernel for bpf_loop: %w", err)
	}
	return "watch", nil
}

func loadObjects(o Options, build string, keyByAddress bool) (objects, error) {
	spec, err := loadCapture()
	if err != nil {
		return objects{}, fmt.Errorf("reading the BPF object: %w", err)
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return objects{}, fmt.Errorf("counting CPUs: %w", err)
	}
	spec.Maps["events"].MaxEntries = uint32(o.RingBytes)
	spec.Maps["streams"].MaxEntries = uint32(o.Streams)
	spec.Maps["runs"].MaxEntries = uint32(cpus * slotsPerCPU)
	if keyByAddress {
		if err := spec.Variables["key_by_address"].Set(uint32(1)); err != nil {
			return objects{}, fmt.Errorf("setting key_by_address: %w", err)
		}
	}
	for name := range spec.Programs {
		if !strings.HasPrefix(name, build) {
			delete(spec.Programs, name)
		}
	}
	collection, err := ebpf.NewCollection(spec)
	if err != nil {
		return objects{}, fmt.Errorf("loading the capture programs: %w", err)
	}
	return objects{
		egress:     collection.Programs[build+"_egress"],
		ingress:    collection.Programs[build+"_ingress"],
		settings:   collection.Maps["settings"],
		streams:    collection.Maps["streams"],
		foreigners: collection.Maps["foreigners"],
		events:     collection.Maps["events"],
		counts:     collection.Maps["counts"],
		collection: collection,
	}, nil
}

// Close frees programs and maps.
func (o *objects) Close() error {
	if o.collection != nil {
		o.collection.Close()
	}
	return nil
}

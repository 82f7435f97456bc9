package bpf

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// objects are the programs of capture.c and the maps that they share. They are owned by
// collection.
type objects struct {
	egress, ingress                       *ebpf.Program
	settings, streams, foreigners, events *ebpf.Map
	counts, rates                         *ebpf.Map
	collection                            *ebpf.Collection
}

// loadObjects sets the sizes of maps and the programs' constants and loads everything.
// Constants are known to the verifier, which drops branches that depend on them.
func loadObjects(o Options, keyByAddress bool) (objects, error) {
	spec, err := loadCapture()
	if err != nil {
		return objects{}, fmt.Errorf("reading the BPF object: %w", err)
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return objects{}, fmt.Errorf("counting CPUs: %w", err)
	}
	// The sizes in the object are placeholders: these are known only now.
	spec.Maps["events"].MaxEntries = uint32(o.RingBytes)
	spec.Maps["streams"].MaxEntries = uint32(o.Streams)
	spec.Maps["rates"].MaxEntries = uint32(o.Streams)
	slots := uint32(max(cpus*slotsPerCPU, minSlots))
	// At least as many as a program tries, however few CPUs there are.
	spec.Maps["runs"].MaxEntries = slots
	// Both are volatile const in the C source, so they are in the object's read-only data.
	constants := map[string]uint32{"slots": slots, "key_by_address": uint32(flag(keyByAddress))}
	for name, value := range constants {
		if err := spec.Variables[name].Set(value); err != nil {
			return objects{}, fmt.Errorf("setting %s in the BPF object: %w", name, err)
		}
	}
	collection, err := ebpf.NewCollection(spec)
	if err != nil {
		return objects{}, fmt.Errorf("loading the capture programs: %w", err)
	}
	return objects{
		egress:     collection.Programs["watch_egress"],
		ingress:    collection.Programs["watch_ingress"],
		settings:   collection.Maps["settings"],
		streams:    collection.Maps["streams"],
		foreigners: collection.Maps["foreigners"],
		events:     collection.Maps["events"],
		counts:     collection.Maps["counts"],
		rates:      collection.Maps["rates"],
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

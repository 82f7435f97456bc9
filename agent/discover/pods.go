package discover

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/psidecar/psidecar/internal/policy"
)

// LinkAnnotation is a node's annotation with the speed of its link in Mbit/s. A label of the
// same name counts if there is no annotation.
const LinkAnnotation = "psidecar.io/link-mbit"

// A PodOnNode names a pod of this node.
type PodOnNode struct {
	UID, Namespace, Name string
	Node                 string
}

// Pods follows the pods of one node. It is safe for concurrent use. [Pods.Run] keeps it up to
// date; before its first list arrives, no pod is known. Informers call the handlers (pod, noPod
// and so on), each from its own goroutine.
type Pods struct {
	node     string
	selector labels.Selector    // nil: all pods are selected
	allowed  policy.Allowed     // the annotations that may take effect
	objects  metadata.Interface // only metadata is read
	events   *rest.RESTClient

	mu         sync.Mutex            // guards the rest
	pods       map[string]known      // by UID
	namespaces map[string]labels.Set // by name; followed only with a selector
	link       uint32                // the node's link in Mbit/s; 0: unknown
	said       string                // LinkAnnotation's text, so that a wrong one is logged once
	// queue has the UIDs of pods to resolve or to write events for; nil before Run.
	queue workqueue.TypedRateLimitingInterface[string]
}

// known is the state of a pod. said.Owner is empty until work has resolved it.
type known struct {
	PodOnNode
	uid        types.UID
	labels     labels.Set
	controller *metav1.OwnerReference // nil: none
	said       policy.Pod
}

// NewPods prepares to follow the pods of a node and connects to nothing yet. selector has the
// syntax of kubectl's -l and matches the labels of pods or of their namespaces; an empty one
// selects all pods. allowed lists what annotations may set.
func NewPods(config *rest.Config, node, selector string, allowed policy.Allowed) (*Pods, error) {
	p := &Pods{node: node, allowed: allowed, pods: map[string]known{}, namespaces: map[string]labels.Set{}}
	if selector != "" {
		var err error
		if p.selector, err = labels.Parse(selector); err != nil {
			return nil, fmt.Errorf("selecting pods by %q: %w", selector, err)
		}
	}
	client, err := rest.HTTPClientFor(config)
	if err == nil {
		p.events, err = newEventClient(config, client)
	}
	if err == nil {
		p.objects, err = metadata.NewForConfigAndClient(config, client)
	}
	if err != nil {
		return nil, fmt.Errorf("connecting to the API server: %w", err)
	}
	return p, nil
}

// Run follows the node's pods until ctx ends. It returns an error only if it cannot start: a
// failing API server is retried, and the last known state stays in effect. Namespaces are
// followed only if a selector needs their labels.
func (p *Pods) Run(ctx context.Context) error {
	ctx = klog.NewContext(ctx, logr.FromSlogHandler(slog.Default().Handler()))
	pods, err := p.informer("pods", fields.OneTermEqualSelector("spec.nodeName", p.node), p.pod, p.noPod)
	if err != nil {
		return err
	}
	node, err := p.informer("nodes", fields.OneTermEqualSelector("metadata.name", p.node), p.ownNode, p.noNode)
	if err != nil {
		return err
	}
	informers := []cache.SharedIndexInformer{pods, node}
	if p.selector != nil {
		namespaces, err := p.informer("namespaces", fields.Everything(), p.namespace, p.noNamespace)
		if err != nil {
			return err
		}
		informers = append(informers, namespaces)
	}
	var g errgroup.Group
	queue := p.begin()
	for _, i := range informers {
		g.Go(func() error { i.RunWithContext(ctx); return nil })
	}
	g.Go(func() error { p.work(ctx, queue); return nil })
	return g.Wait()
}

// informer returns an informer for the objects of a kind that match which. is is called with
// each object that exists or changes, gone with each that was deleted.
func (p *Pods) informer(resource string, which fields.Selector, is, gone func(*metav1.PartialObjectMetadata)) (cache.SharedIndexInformer, error) {
	objects := p.objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: resource})
	i := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = which.String()
			return objects.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = which.String()
			return objects.Watch(ctx, o)
		},
	}, &metav1.PartialObjectMetadata{}, 0, nil)
	if err := i.SetTransform(trim); err != nil {
		return nil, fmt.Errorf("following %s: %w", resource, err)
	}
	if err := i.SetWatchErrorHandlerWithContext(func(ctx context.Context, _ *cache.Reflector, err error) {
		if ctx.Err() == nil {
			slog.Warn("cannot read from the API server; continuing with the last known state and retrying", "of", resource, "error", err)
		}
	}); err != nil {
		return nil, fmt.Errorf("following %s: %w", resource, err)
	}
	_, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(now any) { handle(now, is) },
		UpdateFunc: func(_, now any) { handle(now, is) },
		DeleteFunc: func(was any) {
			// The watch was interrupted and the deletion missed; this is the last state known.
			if last, ok := was.(cache.DeletedFinalStateUnknown); ok {
				was = last.Obj
			}
			handle(was, gone)
		},
	})
	if err != nil {
		return nil, fmt.Errorf("following %s: %w", resource, err)
	}
	return i, nil
}

// handle calls f with an object of an informer.
func handle(object any, f func(*metav1.PartialObjectMetadata)) {
	if o, ok := object.(*metav1.PartialObjectMetadata); ok {
		f(o)
	}
}

// trim removes what is not used here, since the informer's cache holds every pod of the node.
func trim(object any) (any, error) {
	if o, ok := object.(*metav1.PartialObjectMetadata); ok {
		o.ManagedFields = nil
		maps.DeleteFunc(o.Annotations, func(name, _ string) bool { return !strings.HasPrefix(name, policy.Prefix) })
	}
	return object, nil
}

// pod stores a new or changed pod. A resolved owner is kept as long as the controller is the
// same, so an update of the pod costs no requests.
func (p *Pods) pod(o *metav1.PartialObjectMetadata) {
	k := known{PodOnNode: PodOnNode{string(o.UID), o.Namespace, o.Name, p.node}, uid: o.UID, labels: o.Labels, controller: metav1.GetControllerOf(o)}
	k.said.Namespace, k.said.Settings = o.Namespace, policy.Annotations(o.Annotations)
	k.said.Policy, k.said.Wrong = k.said.Settings.Read(p.allowed, func(key string) string { return policy.Prefix + key })
	p.mu.Lock()
	if before, there := p.pods[k.UID]; there && k.controller != nil && before.controller != nil && before.controller.UID == k.controller.UID {
		k.said.Owner = before.said.Owner
	}
	p.pods[k.UID] = k
	p.mu.Unlock()
	if k.controller != nil && k.said.Owner == "" || len(k.said.Wrong) > 0 {
		p.ask(k.UID)
	}
}

func (p *Pods) noPod(o *metav1.PartialObjectMetadata) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, string(o.UID))
}

func (p *Pods) namespace(o *metav1.PartialObjectMetadata) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.namespaces[o.Name] = o.Labels
}

func (p *Pods) noNamespace(o *metav1.PartialObjectMetadata) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.namespaces, o.Name)
}

// ownNode reads the speed of the node's link from its annotation or label.
func (p *Pods) ownNode(o *metav1.PartialObjectMetadata) {
	said, annotated := o.Annotations[LinkAnnotation]
	if !annotated {
		said = o.Labels[LinkAnnotation]
	}
	mbit := uint64(0)
	if said != "" {
		var err error
		if mbit, err = strconv.ParseUint(said, 10, 32); err != nil {
			mbit = 0
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if said != p.said && said != "" && mbit == 0 {
		slog.Warn("invalid link speed annotation on the node: want Mbit/s, above 0", "node", o.Name, "name", LinkAnnotation, "value", said)
	}
	p.link, p.said = uint32(mbit), said
}

func (p *Pods) noNode(*metav1.PartialObjectMetadata) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.link, p.said = 0, ""
}

// Link returns the speed of the node's link in Mbit/s, see [LinkAnnotation]; 0 if it is
// unknown.
func (p *Pods) Link() uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.link
}

// Lookup returns a pod of the node by its UID.
func (p *Pods) Lookup(uid string) (PodOnNode, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k, ok := p.pods[uid]
	return k.PodOnNode, ok
}

// Selected reports whether the processes of a pod are to be watched. An annotation that is
// allowed to decide comes first. With a selector, jobs opt in: an unknown pod is not selected,
// nor is a process outside pods, whose uid is empty.
func (p *Pods) Selected(uid string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	k, ok := p.pods[uid]
	if wish := k.said.Policy.Observe; wish != "" || p.selector == nil {
		return wish != "false"
	}
	return ok && (p.selector.Matches(k.labels) || p.selector.Matches(p.namespaces[k.Namespace]))
}

package owners

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// A kind makes two pods, one on each node, that something of that name owns, or nothing.
type kind func(c *cluster, name string, labelled bool, annotations map[string]string)

// job is a Job's pods.
func job(c *cluster, name string, labelled bool, annotations map[string]string) {
	c.t.Helper()
	c.add(jobText(name, "", template(name, labelled, annotations)))
}

func jobText(name, owner, template string) string {
	return fmt.Sprintf("{apiVersion: batch/v1, kind: Job, metadata: {name: %s%s}, spec: {completions: 2, parallelism: 2, template: %s}}",
		name, owner, fmt.Sprintf(template, "Never"))
}

// cronJob is the pods of a Job that a CronJob owns, as kubectl create job --from makes
// one.
func cronJob(c *cluster, name string, labelled bool, annotations map[string]string) {
	c.t.Helper()
	template := template(name, labelled, annotations)
	above := c.add(fmt.Sprintf(`{apiVersion: batch/v1, kind: CronJob, metadata: {name: %s}, spec: {schedule: "0 0 1 1 *", suspend: true, jobTemplate: {spec: {template: %s}}}}`,
		name, fmt.Sprintf(template, "Never")))
	c.add(jobText(name+"-28990", owned(above), template))
}

// statefulSet is a StatefulSet's pods.
func statefulSet(c *cluster, name string, labelled bool, annotations map[string]string) {
	c.t.Helper()
	c.add(fmt.Sprintf("{apiVersion: apps/v1, kind: StatefulSet, metadata: {name: %s}, spec: {replicas: 2, serviceName: %s, podManagementPolicy: Parallel, selector: {matchLabels: {app: %s}}, template: %s}}",
		name, name, name, fmt.Sprintf(template(name, labelled, annotations), "Always")))
}

// pyTorchJob is two pods of an operator's: nothing but their owner is asked for here.
func pyTorchJob(c *cluster, name string, labelled bool, annotations map[string]string) {
	c.t.Helper()
	above := c.add(fmt.Sprintf("{apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {name: %s}}", name))
	twoPods(c, name, owned(above), labelled, annotations)
}

// bare is two pods that nobody owns.
func bare(c *cluster, name string, labelled bool, annotations map[string]string) {
	c.t.Helper()
	twoPods(c, name, "", labelled, annotations)
}

func twoPods(c *cluster, name, owner string, labelled bool, annotations map[string]string) {
	c.t.Helper()
	for i := range 2 {
		text := fmt.Sprintf(template(name, labelled, annotations), "Never")
		c.add(fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: %s-%d%s, %s}", name, i, owner, text[len("{metadata: {"):]))
	}
}

// owned is the part of an object's metadata that says whose it is.
func owned(above *unstructured.Unstructured) string {
	return fmt.Sprintf(", ownerReferences: [{apiVersion: %s, kind: %s, name: %s, uid: %s, controller: true}]",
		above.GetAPIVersion(), above.GetKind(), above.GetName(), above.GetUID())
}

// pyTorchJobs defines the kind as far as names go.
const pyTorchJobs = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: pytorchjobs.kubeflow.org}
spec:
  group: kubeflow.org
  scope: Namespaced
  names: {kind: PyTorchJob, plural: pytorchjobs, singular: pytorchjob}
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

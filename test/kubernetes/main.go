// Command kubernetes decodes manifests as strictly as the API server: unknown fields and values of
// the wrong type are errors. It prints the objects as a JSON list.
package main

import (
	"bytes"
	"encoding/json"
	"log"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

func main() {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, batchv1.AddToScheme, corev1.AddToScheme} {
		must(add(scheme))
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	var objects []runtime.Object
	for _, name := range os.Args[1:] {
		log.SetPrefix(name + ": ")
		text, err := os.ReadFile(name)
		must(err)
		for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
			object, _, err := decoder.Decode(append(document, '\n'), nil, nil)
			must(err)
			objects = append(objects, object)
		}
	}
	must(json.NewEncoder(os.Stdout).Encode(objects))
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
